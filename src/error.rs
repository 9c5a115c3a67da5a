//! What can go wrong, as the process's exit code sees it.
//!
//! Every room has its own error type; this one gathers them by *kind*, so that `main` can turn any of
//! them into a documented exit code. It never prints.

use std::path::{Path, PathBuf};

/// The kinds of failure and the exit code of each. Code 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// 1: a failure of the program itself or of the machine (disk full, a broken pipe that matters).
    Internal,
    /// 2: the command line is wrong: an unknown flag, a bad value, a combination without meaning.
    Usage,
    /// 3: an input file cannot be read, or its content is malformed or contradicts itself.
    Input,
    /// 4: the input is well formed but does not determine what was asked (a plan without decode cells).
    Undetermined,
    /// 5: a live server could not be measured: refused, unauthorised, broken off, stalled.
    Server,
    /// 6: a check ran and its result lies outside the limit that was asked for.
    CheckFailed,
}

impl ErrorKind {
    /// The process exit code of this kind.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Input => 3,
            Self::Undetermined => 4,
            Self::Server => 5,
            Self::CheckFailed => 6,
        }
    }
}

/// An error with its kind and one sentence that names the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A malformed or contradictory input: `place` is a file, a file with a line, or a field.
    pub fn input(place: impl std::fmt::Display, message: impl std::fmt::Display) -> Self {
        Self::new(ErrorKind::Input, format!("{place}: {message}"))
    }

    /// A wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// An input that does not determine what was asked.
    pub fn undetermined(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Undetermined, message)
    }

    /// The kind, hence the exit code.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Reads a text file.
///
/// # Errors
/// [`ErrorKind::Input`] that names the file and what the system said.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(|e| Error::input(path.display(), format!("cannot read: {e}")))?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::input(path.display(), format!("not UTF-8 text (first bad byte at offset {at})"))
    })
}

/// Writes `content` to `path` through a temporary file in the same folder and a rename, so that a reader
/// sees the old file or the new one and never a half.
///
/// # Errors
/// [`ErrorKind::Internal`] that names the file and what the system said.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let fail = |e: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Internal, format!("{}: cannot write: {e}", path.display()))
    };
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(&folder).map_err(|e| fail(&e))?;
    std::io::Write::write_all(&mut file, content).map_err(|e| fail(&e))?;
    set_readable(file.path()).map_err(|e| fail(&e))?;
    file.persist(path).map_err(|e| fail(&e.error))?;
    Ok(())
}

/// Temporary files are private to the user; a result file is as readable as any other.
#[cfg(unix)]
fn set_readable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_readable(_: &Path) -> std::io::Result<()> {
    Ok(())
}
