//! An output whose reader may go away: what it would have read is dropped, and the work goes on to its verdict.

use std::io::{self, ErrorKind, Write};

pub(crate) struct Lasting<W> {
    inner: W,
    is_gone: bool,
}

impl<W: Write> Lasting<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, is_gone: false }
    }

    fn unless_gone<T>(&mut self, otherwise: T, act: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        if self.is_gone {
            return Ok(otherwise);
        }
        match act(&mut self.inner) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_gone = true;
                Ok(otherwise)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for Lasting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_gone(bytes.len(), |inner| inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_gone((), W::flush)
    }
}
