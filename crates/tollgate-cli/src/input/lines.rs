//! Bytes of a file or of the standard input, unpacked if they are packed, a block of whole lines at a time.

use crate::failure::Failure;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest line that is read, and how much is read at once. Longer lines are passed over and counted.
const BLOCK_BYTES: usize = 1 << 20;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Where lines come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Stdin,
    File(PathBuf),
}

impl Place {
    /// A file by its path, `-` for the standard input.
    pub(crate) fn new(path: &Path) -> Self {
        if path == Path::new("-") { Self::Stdin } else { Self::File(path.to_owned()) }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// How many bytes there are, if that can be known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Stdin => None,
            Self::File(path) => {
                path.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len())
            }
        }
    }
}

/// Counts what has been read, before it is unpacked.
struct Counted<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        // Relaxed: a number for the progress bar, and nothing is published by it.
        self.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Blocks of whole lines.
pub(crate) struct Blocks {
    reader: Box<dyn Read + Send>,
    name: PathBuf,
    buffer: Vec<u8>,
    /// What is in the buffer: handed out up to `given`, read up to `filled`.
    given: usize,
    filled: usize,
    at_end: bool,
    /// In the middle of a line that is too long.
    skipping: bool,
}

impl Blocks {
    pub(crate) fn open(place: &Place, bytes_read: &Arc<AtomicU64>) -> Result<Self, Failure> {
        let name = PathBuf::from(place.name());
        let inner: Box<dyn Read + Send> = match place {
            Place::Stdin => Box::new(io::stdin()),
            Place::File(path) => {
                let file = File::open(path).map_err(|error| Failure::file(path, "open", &error))?;
                let is_directory = file.metadata().is_ok_and(|data| data.is_dir());
                if is_directory {
                    return Err(Failure::file(path, "read", &io::ErrorKind::IsADirectory.into()));
                }
                Box::new(file)
            }
        };
        let mut buffered =
            BufReader::with_capacity(1 << 16, Counted { inner, bytes: Arc::clone(bytes_read) });
        let start = buffered.fill_buf().map_err(|error| Failure::file(&name, "read", &error))?;
        let reader: Box<dyn Read + Send> = match start.starts_with(&GZIP_MAGIC) {
            true => Box::new(MultiGzDecoder::new(buffered)),
            false => Box::new(buffered),
        };
        Ok(Self {
            reader,
            name,
            buffer: vec![0; BLOCK_BYTES],
            given: 0,
            filled: 0,
            at_end: false,
            skipping: false,
        })
    }

    /// The next lines, the last of them whole, and how many were passed over before them; nothing at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &[u8])>, Failure> {
        let mut too_long = 0;
        loop {
            self.buffer.copy_within(self.given..self.filled, 0);
            self.filled -= self.given;
            self.given = 0;
            while self.filled < self.buffer.len() && !self.at_end {
                match self.reader.read(&mut self.buffer[self.filled..]) {
                    Ok(0) => self.at_end = true,
                    Ok(read) => self.filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Failure::file(&self.name, "read", &error)),
                }
            }
            let filled = &self.buffer[..self.filled];
            if self.skipping {
                // What is left of the long line goes, with its end if that is here.
                let end = memchr::memchr(b'\n', filled);
                self.given = end.map_or(self.filled, |end| end + 1);
                self.skipping = end.is_none() && !self.at_end;
                continue;
            }
            if self.at_end {
                self.given = self.filled;
                let is_over = self.filled == 0 && too_long == 0;
                return Ok((!is_over).then_some((too_long, &self.buffer[..self.filled])));
            }
            match memchr::memrchr(b'\n', filled) {
                Some(end) => {
                    self.given = end + 1;
                    return Ok(Some((too_long, &self.buffer[..=end])));
                }
                None => {
                    too_long += 1;
                    self.given = self.filled;
                    self.skipping = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn blocks(bytes: &[u8]) -> (Vec<u8>, u64) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("written");
        let mut blocks =
            Blocks::open(&Place::new(file.path()), &Arc::default()).unwrap_or_else(|error| panic!("{error}"));
        let (mut all, mut all_too_long) = (Vec::new(), 0);
        while let Some((too_long, block)) = blocks.next().unwrap_or_else(|error| panic!("{error}")) {
            all.extend_from_slice(block);
            all_too_long += too_long;
        }
        (all, all_too_long)
    }

    #[test]
    fn nothing_is_lost_or_doubled() {
        let text: Vec<u8> = (0..300_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        assert_eq!(blocks(&text), (text.clone(), 0));
        assert_eq!(blocks(b"no newline at the end"), (b"no newline at the end".to_vec(), 0));
        assert_eq!(blocks(b""), (Vec::new(), 0));
    }

    #[test]
    fn packed_parts_are_unpacked_one_after_the_other() {
        let mut packed = Vec::new();
        for part in ["one\n", "two\n"] {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(part.as_bytes()).expect("packed");
            packed.extend(encoder.finish().expect("packed"));
        }
        assert_eq!(blocks(&packed), (b"one\ntwo\n".to_vec(), 0));
    }

    #[test]
    fn a_line_without_end_is_passed_over() {
        let mut text = b"before\n".to_vec();
        text.extend(vec![b'x'; 3 * BLOCK_BYTES]);
        text.extend(b"\nafter\n");
        assert_eq!(blocks(&text), (b"before\nafter\n".to_vec(), 1));
        // Nor is one at the end, or one that is all there is.
        assert_eq!(blocks(&text[..text.len() - 7]), (b"before\n".to_vec(), 1));
        assert_eq!(blocks(&text[7..2 * BLOCK_BYTES]), (Vec::new(), 1));
    }
}
