//! Zstandard streams of any number of frames, read with a decoder written in Rust, so that nothing
//! but a Rust toolchain is needed.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// How much is decoded at a time.
const STEP_BYTES: usize = 1 << 18;

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

/// Decompresses what it reads.
pub struct Reader<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Reader<R> {
    pub fn new(source: R) -> Self {
        Reader { source, decoder: FrameDecoder::new(), in_frame: false }
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
                Err(error) => return Err(damaged(error)),
            }
        }
        Ok(false)
    }

    /// Ends a frame: what its checksum says must be what was decoded.
    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(written), Some(computed)) if written != computed => Err(damaged("wrong checksum")),
            _ => Ok(()),
        }
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
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBytes(STEP_BYTES))
                    .map_err(damaged)?;
            }
        }
    }
}

/// Which of the decoder's many reasons it was helps nobody who has to copy the file again.
fn damaged(_why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the zstd data is damaged or ends early")
}
