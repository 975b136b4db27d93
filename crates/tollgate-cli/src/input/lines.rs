//! Bytes of a file or of the standard input, unpacked if they are packed, a block of whole lines at a time.

use crate::failure::Failure;
use flate2::bufread::GzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The longest line that is read, and how much is read at once. Longer lines are passed over and counted.
const BLOCK_BYTES: usize = 1 << 20;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// How much is kept of a line that was torn off.
const TORN_BYTES_MAX: usize = 400;

/// Where lines come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Stdin,
    File(PathBuf),
    /// A file of which so many bytes are read, whatever comes after them; said by a name that need not be its own.
    Kept {
        name: String,
        path: PathBuf,
        bytes: u64,
    },
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
            Self::Kept { name, .. } => name.clone(),
        }
    }

    /// How many bytes there are, if that can be known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Stdin => None,
            Self::File(path) => {
                path.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len())
            }
            Self::Kept { bytes, .. } => Some(*bytes),
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

/// Packed parts, one after the other. Zeros between and behind them are padding.
struct Unpacked<R> {
    part: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(part) = &mut self.part {
            let read = part.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let rest = self.part.take().map(GzDecoder::into_inner).map(past_zeros).transpose()?.flatten();
            self.part = rest.map(GzDecoder::new);
        }
        Ok(0)
    }
}

/// What comes after zeros, if anything does.
fn past_zeros<R: BufRead>(mut reader: R) -> io::Result<Option<R>> {
    loop {
        let bytes = match reader.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match bytes.iter().position(|&byte| byte != 0) {
            Some(zeros) => {
                reader.consume(zeros);
                return Ok(Some(reader));
            }
            None => {
                let zeros = bytes.len();
                reader.consume(zeros);
            }
        }
    }
}

fn opened(path: &Path) -> Result<File, Failure> {
    let file = File::open(path).map_err(|error| Failure::file(path, "open", &error))?;
    if file.metadata().is_ok_and(|data| data.is_dir()) {
        return Err(Failure::file(path, "read", &io::ErrorKind::IsADirectory.into()));
    }
    Ok(file)
}

/// Where packed data broke off: why, and the beginning of the line in hand.
#[derive(Clone, Debug)]
pub(crate) struct Torn {
    pub(crate) cause: String,
    pub(crate) line: Vec<u8>,
}

/// Blocks of whole lines.
pub(crate) struct Blocks {
    reader: Box<dyn Read + Send>,
    is_packed: bool,
    torn: Option<Torn>,
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
            Place::File(path) => Box::new(opened(path)?),
            Place::Kept { path, bytes, .. } => Box::new(opened(path)?.take(*bytes)),
        };
        let mut buffered =
            BufReader::with_capacity(1 << 16, Counted { inner, bytes: Arc::clone(bytes_read) });
        let start = buffered.fill_buf().map_err(|error| Failure::file(&name, "read", &error))?;
        let is_packed = start.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn Read + Send> = match is_packed {
            true => Box::new(Unpacked { part: Some(GzDecoder::new(buffered)) }),
            false => Box::new(buffered),
        };
        Ok(Self {
            reader,
            is_packed,
            torn: None,
            name,
            buffer: vec![0; BLOCK_BYTES],
            given: 0,
            filled: 0,
            at_end: false,
            skipping: false,
        })
    }

    /// Where packed data broke off, after the last block; what came before was handed out.
    pub(crate) fn torn(&self) -> Option<&Torn> {
        self.torn.as_ref()
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
                    Err(error) => match self.tear(&error) {
                        true => self.at_end = true,
                        false => return Err(Failure::file(&self.name, "read", &error)),
                    },
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
                let mut whole = self.filled;
                if let Some(torn) = &mut self.torn {
                    whole = memchr::memrchr(b'\n', filled).map_or(0, |end| end + 1);
                    torn.line.extend(filled[whole..].iter().take(TORN_BYTES_MAX));
                }
                self.given = self.filled;
                let is_over = whole == 0 && too_long == 0;
                return Ok((!is_over).then_some((too_long, &self.buffer[..whole])));
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

    /// Whether an error means that packed data is not whole.
    fn tear(&mut self, error: &io::Error) -> bool {
        let cause = match error.kind() {
            _ if !self.is_packed => return false,
            io::ErrorKind::UnexpectedEof => "the packed data ends early".to_owned(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                format!("the packed data is broken from here on: {error}")
            }
            _ => return false,
        };
        self.torn = Some(Torn { cause, line: Vec::new() });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn blocks(bytes: &[u8]) -> (Vec<u8>, u64) {
        let (all, too_long, torn) = torn_blocks(bytes);
        assert!(torn.is_none(), "{torn:?}");
        (all, too_long)
    }

    fn torn_blocks(bytes: &[u8]) -> (Vec<u8>, u64, Option<Torn>) {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("written");
        let mut blocks =
            Blocks::open(&Place::new(file.path()), &Arc::default()).unwrap_or_else(|error| panic!("{error}"));
        let (mut all, mut all_too_long) = (Vec::new(), 0);
        while let Some((too_long, block)) = blocks.next().unwrap_or_else(|error| panic!("{error}")) {
            all.extend_from_slice(block);
            all_too_long += too_long;
        }
        (all, all_too_long, blocks.torn().cloned())
    }

    fn packed(part: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(part).expect("packed");
        encoder.finish().expect("packed")
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
        let (one, two) = (packed(b"one\n"), packed(b"two\n"));
        assert_eq!(blocks(&[&one[..], &two, &packed(b"")].concat()), (b"one\ntwo\n".to_vec(), 0));
        // Tapes and block devices pad with zeros.
        let padded = [&one[..], &[0; 700], &two, &vec![0; 200_000]].concat();
        assert_eq!(blocks(&padded), (b"one\ntwo\n".to_vec(), 0));
    }

    #[test]
    fn what_was_unpacked_before_the_break_is_handed_out() {
        let text: Vec<u8> = (0..100_000_u64).flat_map(|n| format!("line {}\n", n * n).into_bytes()).collect();
        let whole = packed(&text);
        let (all, _, torn) = torn_blocks(&whole[..whole.len() / 2]);
        let torn = torn.expect("it is cut");
        assert!(torn.cause.contains("ends early"), "{torn:?}");
        assert!(all.len() > text.len() / 4 && all.ends_with(b"\n") && text.starts_with(&all));
        assert!(text[all.len()..].starts_with(&torn.line));

        let mut broken = whole.clone();
        // The checksum at the end.
        broken[whole.len() - 8] ^= 1;
        let (all, _, torn) = torn_blocks(&broken);
        assert!(all == text && torn.expect("broken").cause.contains("is broken"));
        let (all, _, torn) = torn_blocks(&[&whole[..], b"no gzip"].concat());
        assert!(all == text && torn.is_some());
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
