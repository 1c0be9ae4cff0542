//! Zstandard streams of any number of frames, read with a decoder written in Rust, so that nothing
//! but a Rust toolchain is needed.

use std::error::Error;
use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// How much is decoded at a time.
const STEP_BYTES: usize = 1 << 18;
/// An empty raw block, the last of its frame (RFC 8878, 3.1.1.2), and room for a checksum.
const LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

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

/// Decompresses what it reads. Of a file that ends within a frame it gives all whole blocks, then an
/// error of the kind [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
pub struct Reader<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
    ended_early: bool,
}

impl<R: BufRead> Reader<R> {
    pub fn new(source: R) -> Self {
        Reader { source, decoder: FrameDecoder::new(), in_frame: false, ended_early: false }
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

    /// Ends a frame: what its checksum says must be what was decoded.
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

    /// Decodes some more of a frame.
    fn decode(&mut self) -> io::Result<()> {
        let step = BlockDecodingStrategy::UptoBytes(STEP_BYTES);
        let Err(error) = self.decoder.decode_blocks(&mut self.source, step) else { return Ok(()) };
        let why = unreadable(&error);
        if why.kind() != io::ErrorKind::UnexpectedEof {
            return Err(why);
        }
        // The decoder keeps what later blocks may repeat until it has seen the last one.
        self.ended_early = true;
        self.decoder.decode_blocks(&LAST_BLOCK[..], BlockDecodingStrategy::All).map_err(|_| damaged())?;
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
            let read = self.decoder.read(buf)?;
            if read > 0 || buf.is_empty() {
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

/// Which of the decoder's many reasons it was helps nobody who has to copy the file again, but for
/// one: there was no more to read.
fn unreadable(why: &FrameDecoderError) -> io::Error {
    let mut causes = std::iter::successors(Some(why as &(dyn Error + 'static)), |&why| why.source());
    let is_end = causes.any(|why| {
        why.downcast_ref::<io::Error>().is_some_and(|why| why.kind() == io::ErrorKind::UnexpectedEof)
    });
    if is_end { ends_early() } else { damaged() }
}

fn ends_early() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the zstd data ends early")
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the zstd data is damaged")
}
