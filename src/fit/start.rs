//! The profile before anything was fitted: what the measurement's own description says.

use super::observe::Observations;
use crate::costs::{DecodeCosts, PrefillCosts};
use crate::engine::{EngineConfig, KvCacheGroup, MambaCacheMode};
use crate::profile::{
    Costs, DEFAULT_PROMPT_OVERHEAD, DecodeSpread, FittedRange, KvCapacity, MatrixDefaults, Origin,
    PROFILE_SCHEMA, Profile, Uncertainty,
};
use crate::record::{Measurement, Phase, Plan, ServerMeta, distinct};

/// Noise of one measured throughput, relative: between repeated cells of the public matrices.
const NOISE: f64 = 0.004;

pub(super) fn profile(measurement: &Measurement, plan: &Plan, observed: &Observations) -> Profile {
    let meta = &measurement.meta;
    let batch = distinct(observed.decode.iter().map(|c| c.concurrency));
    let contexts = distinct(observed.decode.iter().map(|c| c.context_tokens));
    let edge = |values: &[u64]| (values.first().copied().unwrap_or(0), values.last().copied().unwrap_or(0));
    let prefill =
        distinct(measurement.cells.iter().filter(|c| c.phase == Phase::Prefill).map(|c| c.context_tokens));
    let engine = engine(&meta.server, measurement);
    Profile {
        schema: PROFILE_SCHEMA.to_owned(),
        origin: origin(measurement, plan),
        matrix: MatrixDefaults {
            contexts: measurement.contexts(),
            concurrency: measurement.concurrencies(),
            prefill,
            max_tokens: observed.max_tokens,
            duration_s: observed.duration_s,
            prompt_overhead_tokens: meta.protocol.prompt_overhead_tokens.unwrap_or(DEFAULT_PROMPT_OVERHEAD),
            total_tok_s: meta.protocol.total_tok_s.unwrap_or_default(),
        },
        fitted: FittedRange {
            contexts: edge(&contexts),
            concurrency: (batch.first().copied().unwrap_or(1), batch.last().copied().unwrap_or(1)),
        },
        kv: KvCapacity {
            server_tokens: meta.server.kv_cache_tokens.or_else(|| plain_capacity(&meta.server)),
            skip_rule_tokens: meta.protocol.skip_rule_kv_tokens,
            ran_tokens: observed.ran_tokens,
            skipped_tokens: observed.skipped_tokens,
        },
        front_end: super::latency::prior_front_end(),
        costs: Costs {
            decode: DecodeCosts {
                base_ms: vec![1.0; batch.len()],
                slope_ns: vec![1.0; batch.len()],
                batch: batch.clone(),
                near: None,
            },
            prefill: PrefillCosts {
                max_graph_tokens: u64::from(engine.max_num_seqs.saturating_mul(2).min(512)),
                ..super::latency::prior_prefill()
            },
        },
        engine,
        uncertainty: Uncertainty {
            noise: NOISE,
            between_batches: 0.0,
            ttft_log: None,
            prefill: None,
            decode: vec![DecodeSpread::default(); batch.len()],
        },
        notes: observed.notes.clone(),
    }
}

/// vLLM's options as far as they are known; the rest are its defaults for a server of this class.
fn engine(server: &ServerMeta, measurement: &Measurement) -> EngineConfig {
    let default = EngineConfig::default();
    let longest = measurement.cells.iter().map(|c| c.context_tokens).max().unwrap_or(0);
    EngineConfig {
        max_model_len: server.max_model_len.unwrap_or_else(|| default.max_model_len.max(longest + 8_192)),
        max_num_batched_tokens: server.max_num_batched_tokens.unwrap_or(default.max_num_batched_tokens),
        max_num_seqs: server.max_num_seqs.unwrap_or(default.max_num_seqs),
        block_size: server.block_size.unwrap_or(default.block_size),
        enable_prefix_caching: server.enable_prefix_caching.unwrap_or(default.enable_prefix_caching),
        enable_chunked_prefill: server.enable_chunked_prefill.unwrap_or(default.enable_chunked_prefill),
        async_scheduling: server.async_scheduling.unwrap_or(default.async_scheduling),
        mamba_cache_mode: if server.mamba_cache_mode.as_deref() == Some("none") {
            MambaCacheMode::None
        } else {
            MambaCacheMode::Align
        },
        // Mode "all" keeps the state at every block, so that a prompt hits as with attention alone.
        kv_cache_groups: match server.mamba_cache_mode.as_deref() {
            Some("align" | "none") => vec![KvCacheGroup::FullAttention, KvCacheGroup::Mamba],
            _ => vec![KvCacheGroup::FullAttention],
        },
        mamba_shared_hits: server.engine_version.as_deref().is_some_and(before_partial_hits),
        ..default
    }
}

/// Whether a vLLM of this version lets requests share a recurrent state in one step. Measurements of 0.27 show that
/// it does, the scheduler of 0.32 does not; nothing is known about the versions between, which count as the later.
fn before_partial_hits(version: &str) -> bool {
    let mut parts = version.split('.').map(str::parse::<u32>);
    matches!((parts.next(), parts.next()), (Some(Ok(0)), Some(Ok(minor))) if minor <= 27)
}

/// Blocks times block size, which is the capacity of models with attention alone.
fn plain_capacity(server: &ServerMeta) -> Option<u64> {
    let blocks = server.num_gpu_blocks.filter(|_| server.mamba_cache_mode.is_none())?;
    Some(blocks.saturating_sub(1) * server.block_size?)
}

fn origin(measurement: &Measurement, plan: &Plan) -> Origin {
    let server = &measurement.meta.server;
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let engine = match (&server.engine, &server.engine_version) {
        (Some(engine), Some(version)) => format!("{engine} {version}"),
        (Some(engine), None) => engine.clone(),
        _ => "unknown".to_owned(),
    };
    let mut used: Vec<String> = plan
        .decode
        .iter()
        .map(|d| {
            let sizes: Vec<String> = d.concurrency.iter().map(ToString::to_string).collect();
            format!("decode {} x {}", d.context, sizes.join("/"))
        })
        .collect();
    for (name, contexts) in [("prefill", &plan.prefill), ("warm TTFT", &plan.warm_ttft)] {
        if !contexts.is_empty() {
            used.push(format!("{name} {}", contexts.join("/")));
        }
    }
    Origin {
        model: text(&server.model),
        gpu: text(&server.gpu),
        gpu_count: server.gpu_count.unwrap_or(1),
        engine,
        source: measurement.meta.source.clone(),
        fitted_on: used.join("; "),
        fitted_by: format!("inferometer {}", env!("CARGO_PKG_VERSION")),
    }
}
