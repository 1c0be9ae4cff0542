//! Keeps what a replay reads of all that was recorded.

use std::io::{self, BufRead, BufReader, Read, Write};

use ruzstd::encoding::{CompressionLevel, compress};

use super::signals::Signals;
use super::window::Window;
use pagedepot_cli::failure::Failure;
use pagedepot_trace::{Event, Line, parse_line};

/// Numbers of events kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptCounts {
    pub events: u64,
    /// Allocations and frees among them.
    pub page_events: u64,
    /// Samples that the recorder lost.
    pub lost: u64,
}

/// Writes the events of the window to `out`, compressed.
///
/// # Errors
/// When reading or writing fails, or a signal ends it.
pub fn keep(
    text: impl Read,
    out: impl Write,
    (window, signals): (&Window, &Signals),
) -> Result<KeptCounts, Failure> {
    let (line, kept) = (Vec::new(), KeptCounts::default());
    let mut lines =
        KeptLines { text: BufReader::new(text), window, signals, line, at: 0, kept, error: None };
    let mut out = Out { out, error: None };
    compress(&mut lines, &mut out, CompressionLevel::Fastest);
    match (lines.error, out.error) {
        (Some(failure), _) => Err(failure),
        (_, Some(error)) => Err(Failure::Output(error)),
        (None, None) => Ok(lines.kept),
    }
}

/// Writes until something fails. The compressor takes errors for bugs, so they wait here, and in
/// [`KeptLines`].
struct Out<W> {
    out: W,
    error: Option<io::Error>,
}

impl<W: Write> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_none() {
            self.error = self.out.write_all(bytes).err();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the lines that are kept.
struct KeptLines<'w, R> {
    text: BufReader<R>,
    window: &'w Window,
    signals: &'w Signals,
    line: Vec<u8>,
    /// Bytes of the line that were returned already.
    at: usize,
    kept: KeptCounts,
    error: Option<Failure>,
}

impl<R: Read> KeptLines<'_, R> {
    /// Moves to the next line to keep; `false` at the end.
    fn advance(&mut self) -> Result<bool, Failure> {
        let failed = |error| Failure::Run(format!("cannot read what was recorded: {error}"));
        loop {
            self.line.clear();
            self.at = 0;
            if self.text.buffer().is_empty() {
                self.signals.check()?;
            }
            if self.text.read_until(b'\n', &mut self.line).map_err(failed)? == 0 {
                return Ok(false);
            }
            let text = String::from_utf8_lossy(&self.line);
            if self.kept.note(parse_line(text.trim_end()), self.window) {
                return Ok(true);
            }
        }
    }
}

impl KeptCounts {
    /// Counts a line. Returns whether to keep it.
    fn note(&mut self, line: Line<'_>, window: &Window) -> bool {
        match line {
            Line::Record(record) if (window.start_ns..=window.end_ns).contains(&record.time_ns) => {
                self.events += 1;
                let is_page =
                    matches!(record.event, Event::PageAlloc { .. } | Event::PageFree { .. });
                self.page_events += u64::from(is_page);
                true
            }
            Line::Lost(events) => {
                self.lost += events;
                true
            }
            // Other work, and events before and after the window.
            _ => false,
        }
    }
}

impl<R: Read> Read for KeptLines<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            if self.at == self.line.len() {
                match self.advance() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(failure) => {
                        self.error = Some(failure);
                        break;
                    }
                }
            }
            let part = (self.line.len() - self.at).min(buffer.len() - filled);
            buffer[filled..filled + part].copy_from_slice(&self.line[self.at..self.at + part]);
            (self.at, filled) = (self.at + part, filled + part);
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_the_window_is_dropped() {
        let text = "\
            a 1 [000] 1.0: kmem:mm_page_free: page=0x1 pfn=0x1 order=0\n\
            a 1 [000] 2.0: kmem:mm_page_free: page=0x1 pfn=0x2 order=0\n\
            a 1 [000] 2.1: workqueue:workqueue_execute_start: work struct 0x1: function other\n\
            a 1 [000] 2.2: workqueue:workqueue_execute_start: work struct 0x1: \
                function vmstat_update\n\
            a 1 [000] 2.3: PERF_RECORD_LOST lost 17\n\
            a 1 [000] 4.0: kmem:mm_page_free: page=0x1 pfn=0x3 order=0\n";
        let window = Window { start_ns: 1_500_000_000, end_ns: 3_000_000_000, status: Ok(0) };
        let mut out = Vec::new();
        let kept = keep(text.as_bytes(), &mut out, (&window, &Signals::block().unwrap())).unwrap();
        assert_eq!((kept.events, kept.page_events, kept.lost), (2, 1, 17));
        let mut back = String::new();
        ruzstd::decoding::StreamingDecoder::new(&out[..])
            .unwrap()
            .read_to_string(&mut back)
            .unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(back.lines().collect::<Vec<_>>(), [lines[1], lines[3], lines[4]]);
    }
}
