//! Where a page is written: made before the long run, so that what stands against it is known at once.

use crate::failure::Failure;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

pub(crate) struct PageFile {
    path: PathBuf,
    file: File,
    /// Whether there was none before and there is nothing in it yet.
    is_blank: bool,
}

impl PageFile {
    /// Opens a file, and leaves what is in it until there is something better.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let failed = |error| Failure::file(path, "write", &error);
        let is_blank = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, is_blank })
    }

    /// Where builds go if that is here, so that a checkout stays clean; else a file in the directory for temporary
    /// ones, under a name that nobody can have taken.
    pub(crate) fn somewhere() -> Result<Self, Failure> {
        let builds = Path::new("target");
        if builds.is_dir() {
            if let Ok(page) = Self::create(&builds.join("tollgate-report.html")) {
                return Ok(page);
            }
        }
        let failed = |error| Failure::file(&std::env::temp_dir(), "write a page into", &error);
        let named = tempfile::Builder::new().prefix("tollgate-report-").suffix(".html").tempfile();
        let (file, path) = named.and_then(|file| file.keep().map_err(Into::into)).map_err(failed)?;
        Ok(Self { path, file, is_blank: true })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(mut self, page: &str) -> Result<(), Failure> {
        let is_regular = self.file.metadata().is_ok_and(|data| data.is_file());
        let emptied = if is_regular { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(page.as_bytes()));
        written.map_err(|error| Failure::file(&self.path, "write", &error))?;
        self.is_blank = false;
        Ok(())
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.is_blank {
            // What cannot be taken away is empty.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_until_there_is_a_page() {
        let directory = tempfile::tempdir().expect("a directory");
        let (old, new) = (directory.path().join("old.html"), directory.path().join("new.html"));
        fs::write(&old, "something long").expect("written");
        for path in [&old, &new] {
            drop(PageFile::create(path).unwrap_or_else(|error| panic!("{error}")));
        }
        assert_eq!(fs::read_to_string(&old).expect("it is there"), "something long");
        assert!(!new.exists());
        let page = PageFile::create(&old).unwrap_or_else(|error| panic!("{error}"));
        page.write("short").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fs::read_to_string(&old).expect("it is there"), "short");
    }
}
