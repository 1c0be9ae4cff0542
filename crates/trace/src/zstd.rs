//! Zstandard streams of any number of frames, read with a decoder written in Rust, so that nothing
//! but a Rust toolchain is needed.

use std::error::Error;
use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Bytes decoded at a time.
const STEP_BYTES: usize = 1 << 18;
/// An empty raw block, the last of its frame (RFC 8878, 3.1.1.2), and room for a checksum.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Default limits: bytes that any file may expand to, and multiples of its size. Text of events
/// shrinks to about a tenth.
const EXPANDED_BYTES_MAX: u64 = 256 << 20;
const EXPANDED_TIMES_MAX: u64 = 100;

/// Limit on the size of a decompressed trace, so that a small file cannot use up the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpandLimit {
    /// `None`: 256 MiB, or 100 times the compressed size, whichever is more.
    pub bytes: Option<u64>,
}

impl ExpandLimit {
    /// Bytes that so many compressed bytes may expand to.
    fn bytes_max(self, compressed: u64) -> u64 {
        self.bytes.unwrap_or(EXPANDED_BYTES_MAX.max(compressed.saturating_mul(EXPANDED_TIMES_MAX)))
    }
}

/// Whether a file that begins like this is compressed with zstd: a frame or a skippable one
/// (RFC 8878, 3.1).
pub fn is_zstd(start: &[u8]) -> bool {
    match start {
        [a, b, c, d, ..] => {
            let magic = u32::from_le_bytes([*a, *b, *c, *d]);
            magic == 0xfd2f_b528 || magic & 0xffff_fff0 == 0x184d_2a50
        }
        _ => false,
    }
}

/// Decompresses what it reads. Of a file that ends within a frame it gives all whole blocks, then
/// an error of the kind [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
///
/// When there is more data than the limit allows, it returns an error of the kind
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge).
pub struct Reader<R> {
    source: CountingReader<R>,
    decoder: FrameDecoder,
    in_frame: bool,
    ended_early: bool,
    limit: ExpandLimit,
    expanded: u64,
}

impl<R: BufRead> Reader<R> {
    pub fn new(source: R, limit: ExpandLimit) -> Self {
        let source = CountingReader { source, bytes: 0 };
        let decoder = FrameDecoder::new();
        Reader { source, decoder, in_frame: false, ended_early: false, limit, expanded: 0 }
    }

    /// Begins the next frame; `false` at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(unreadable(&error)),
            }
        }
        Ok(false)
    }

    /// Ends a frame, and compares its checksum with that of the decoded data.
    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        if self.ended_early {
            return Err(ends_early());
        }
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(written), Some(computed)) if written != computed => Err(damaged()),
            _ => Ok(()),
        }
    }

    /// Decodes the next part of a frame.
    fn decode(&mut self) -> io::Result<()> {
        let step = BlockDecodingStrategy::UptoBytes(STEP_BYTES);
        let Err(error) = self.decoder.decode_blocks(&mut self.source, step) else { return Ok(()) };
        let why = unreadable(&error);
        if why.kind() != io::ErrorKind::UnexpectedEof {
            return Err(why);
        }
        // The decoder keeps what later blocks may repeat until it has seen the last one.
        self.ended_early = true;
        self.decoder
            .decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::All)
            .map_err(|_| damaged())?;
        Ok(())
    }
}

impl<R: BufRead> Read for Reader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.in_frame = true;
            }
            let left = self.limit.bytes_max(self.source.bytes).saturating_sub(self.expanded);
            if self.decoder.can_collect() > 0 && left == 0 {
                return Err(expands_too_far(&self.source, self.expanded));
            }
            let room = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = self.decoder.read(&mut buf[..room])?;
            if read > 0 || buf.is_empty() {
                self.expanded += read as u64;
                return Ok(read);
            }
            if self.decoder.is_finished() {
                self.end_frame()?;
            } else {
                self.decode()?;
            }
        }
    }
}

/// A file, and the number of bytes read from it.
struct CountingReader<R> {
    source: R,
    bytes: u64,
}

impl<R: BufRead> Read for CountingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buf)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.source.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.bytes += bytes as u64;
    }
}

fn expands_too_far<R>(source: &CountingReader<R>, expanded: u64) -> io::Error {
    let (compressed, expanded) = (source.bytes.div_ceil(1 << 10), expanded >> 20);
    let what = format!("{compressed} KiB of it expand to more than {expanded} MiB");
    io::Error::new(io::ErrorKind::FileTooLarge, what)
}

/// The decoder has many reasons for errors. Only one makes a difference to the user: that the file
/// has ended.
fn unreadable(why: &FrameDecoderError) -> io::Error {
    let mut causes =
        std::iter::successors(Some(why as &(dyn Error + 'static)), |&why| why.source());
    let is_end = causes.any(|why| {
        why.downcast_ref::<io::Error>()
            .is_some_and(|why| why.kind() == io::ErrorKind::UnexpectedEof)
    });
    if is_end { ends_early() } else { damaged() }
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the zstd data ends early")
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the zstd data is damaged")
}
