//! The measurements and profiles that travel inside the binary, so that it works before anyone has a server.

use std::path::PathBuf;

use crate::error::Result;
use crate::profile::Profile;
use crate::record::Measurement;

/// One folder of `calibration/`.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// The folder's name.
    pub name: &'static str,
    measured: &'static str,
    measurement: &'static str,
    plan: &'static str,
    profile: &'static str,
}

macro_rules! shipped {
    ($name:literal) => {
        Shipped {
            name: $name,
            measured: include_str!(concat!("../calibration/", $name, "/measured.csv")),
            measurement: include_str!(concat!("../calibration/", $name, "/measurement.toml")),
            plan: include_str!(concat!("../calibration/", $name, "/plan.toml")),
            profile: include_str!(concat!("../calibration/", $name, "/profile.toml")),
        }
    };
}

/// All of them; the first is the reference and the default.
pub const SHIPPED: [Shipped; 4] = [
    shipped!("ling-3.0-tiny-h200-nvl"),
    shipped!("qwen3.5-397b-awq-4x-rtx-pro-6000"),
    shipped!("glm-5.1-dcp4-8x-rtx-pro-6000"),
    shipped!("kimi-k2.6-dcp1-8x-rtx-pro-6000"),
];

impl Shipped {
    /// The reference.
    pub const fn reference() -> &'static Self {
        &SHIPPED[0]
    }

    /// The one called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        SHIPPED.iter().find(|s| s.name == name)
    }

    /// Its measurement with its plan.
    ///
    /// # Errors
    /// If the shipped text is damaged.
    pub fn measurement(&self) -> Result<Measurement> {
        let at = |file: &str| PathBuf::from(format!("{}/{file}", self.name));
        Measurement::from_parts(
            at("measured.csv"),
            self.measured,
            Some((at("measurement.toml"), self.measurement.to_owned())),
            Some((at("plan.toml"), self.plan.to_owned())),
        )
    }

    /// Its fitted profile.
    ///
    /// # Errors
    /// If the shipped text is damaged.
    pub fn profile(&self) -> Result<Profile> {
        Profile::parse(&PathBuf::from(format!("{}/profile.toml", self.name)), self.profile)
    }
}
