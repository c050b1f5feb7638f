//! The samples of a connection. What does not change from one sample to the next is kept once,
//! because copies of it would cost most of the time of a scan.

use std::collections::VecDeque;
use std::time::Duration;

use crate::window::{Sample, SampleRef};

/// The largest size of a sample. A connection that changes has room for up to the next power of two
/// of the samples that are kept.
const SAMPLE_BYTES: usize = 896;
const _: () = assert!(size_of::<Sample>() <= SAMPLE_BYTES);

/// Samples, oldest first.
#[derive(Debug)]
pub(super) struct Samples {
    /// What was read, oldest first. Each is as of the last sample that shares it.
    readings: VecDeque<Sample>,
    times: VecDeque<Time>,
    /// The number of the first reading. Numbers wrap around.
    first: u32,
}

/// When a sample was taken.
#[derive(Clone, Copy, Debug)]
struct Time {
    at: Duration,
    /// The number of its reading.
    reading: u32,
    /// Whether the reading has `tcp_info`.
    has_info: bool,
}

/// The maximum number of samples to reserve room for at once.
const ROOM: usize = 8;

// === impl Samples ===

impl Samples {
    /// Returns an empty list with room for `most` samples that share one reading.
    pub(super) fn with_room(most: usize) -> Self {
        Self {
            readings: VecDeque::with_capacity(1),
            times: VecDeque::with_capacity(most.min(ROOM)),
            first: 0,
        }
    }

    /// Adds what was read, as the last of at most `most` samples.
    pub(super) fn push(&mut self, sample: Sample, most: usize) {
        self.make_room(most);
        #[expect(clippy::cast_possible_truncation, reason = "numbers wrap around")]
        let reading = self.first.wrapping_add(self.readings.len() as u32);
        self.times.push_back(Time {
            at: sample.at,
            reading,
            has_info: sample.info().is_some(),
        });
        self.readings.push_back(sample);
    }

    /// Adds the last sample again, as of `at`.
    pub(super) fn repeat_last(&mut self, at: Duration, most: usize) {
        let Some(&last) = self.times.back() else {
            return;
        };
        self.make_room(most);
        self.times.push_back(Time { at, ..last });
        if let Some(reading) = self.readings.back_mut() {
            reading.move_to(at);
        }
    }

    /// Removes the last sample.
    pub(super) fn pop(&mut self) {
        let Some(last) = self.times.pop_back() else {
            return;
        };
        match self.times.back() {
            Some(before) if before.reading == last.reading => {
                if let Some(reading) = self.readings.back_mut() {
                    reading.move_to(before.at);
                }
            }
            _ => drop(self.readings.pop_back()),
        }
    }

    /// Keeps only the last `most` samples.
    pub(super) fn shorten(&mut self, most: usize) {
        self.times.drain(..self.times.len().saturating_sub(most));
        self.drop_unused();
        self.times.shrink_to_fit();
        self.readings.shrink_to_fit();
    }

    fn make_room(&mut self, most: usize) {
        if self.times.len() >= most.max(2) {
            self.times.pop_front();
            self.drop_unused();
        }
    }

    /// Removes readings before that of the first sample.
    fn drop_unused(&mut self) {
        let Some(first) = self.times.front() else {
            return;
        };
        while self.first != first.reading && self.readings.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    pub(super) fn last(&self) -> Option<&Sample> {
        self.readings.back()
    }

    /// Returns the samples from `index` on.
    pub(super) fn range(&self, index: usize) -> impl ExactSizeIterator<Item = SampleRef<'_>> {
        self.times.range(index.min(self.times.len())..).map(|time| {
            let reading = time.reading.wrapping_sub(self.first) as usize;
            SampleRef::new(time.at, &self.readings[reading], time.has_info)
        })
    }
}

#[cfg(test)]
impl Samples {
    /// Returns each sample as if it had been read.
    pub(super) fn all(&self) -> Vec<Sample> {
        let one = |time: &Time| {
            let reading = time.reading.wrapping_sub(self.first) as usize;
            let mut sample = self.readings[reading].clone();
            sample.move_to(time.at);
            sample
        };
        self.times.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;
    use crate::window::tests::sample;

    /// A sample whose last acknowledgement is `silent` seconds old.
    fn at(second: u64, silent: u64) -> Sample {
        sample(second * 1000, |info| {
            info.last_ack_recv = Duration::from_secs(silent);
            info.bytes_acked = Some(second);
        })
    }

    #[test]
    fn a_window_over_repeated_samples_is_that_over_read_ones() {
        let mut samples = Samples::with_room(6);
        samples.push(at(0, 3), 6);
        for second in 1..4 {
            samples.repeat_last(Duration::from_secs(second), 6);
        }
        samples.push(at(4, 1), 6);
        samples.repeat_last(Duration::from_secs(5), 6);
        let read = samples.all();
        let silent = |sample: &Sample| sample.info().unwrap().last_ack_recv.as_secs();
        let silent: Vec<_> = read.iter().map(silent).collect();
        assert_eq!(silent, [3, 4, 5, 6, 1, 2]);
        assert_eq!(samples.readings.len(), 2);
        let (one, other) = (Window::of(samples.range(0)), Window::of(&read));
        let (one, other) = (one.unwrap(), other.unwrap());
        let mean = |window: &Window<'_>| window.mean_since_last_ack(|_| true);
        assert_eq!(mean(&one), Some(3.5));
        assert_eq!(mean(&one), mean(&other));
        assert_eq!(one.elapsed(), other.elapsed());
        assert_eq!(one.filled(), other.filled());
        assert_eq!(one.last(), other.last());
    }

    #[test]
    fn no_more_samples_are_kept_than_asked_for() {
        let mut samples = Samples::with_room(3);
        for second in 0..20 {
            match second % 7 {
                0..3 => samples.push(at(second, 0), 3),
                _ => samples.repeat_last(Duration::from_secs(second), 3),
            }
            let times: Vec<_> = samples.all().iter().map(|one| one.at.as_secs()).collect();
            let kept: Vec<_> = (second.saturating_sub(2)..=second).collect();
            assert_eq!(times, kept);
            assert_eq!(samples.len(), samples.range(0).len());
            assert!(samples.readings.len() <= 3);
        }
        // All are of the reading before the last scans.
        assert_eq!(samples.readings.len(), 1);
        samples.push(at(20, 0), 3);
        samples.shorten(2);
        assert_eq!((samples.len(), samples.readings.len()), (2, 2));
        samples.shorten(1);
        assert_eq!((samples.len(), samples.readings.len()), (1, 1));
    }

    #[test]
    fn a_removed_sample_leaves_the_one_before_as_it_was() {
        let mut samples = Samples::with_room(6);
        samples.push(at(0, 3), 6);
        let before = samples.all();
        samples.repeat_last(Duration::from_secs(1), 6);
        samples.pop();
        assert_eq!(samples.all(), before);
        assert_eq!(samples.last(), before.last());
        samples.push(at(2, 0), 6);
        samples.pop();
        assert_eq!(samples.all(), before);
        samples.pop();
        assert_eq!((samples.len(), samples.last()), (0, None));
    }
}
