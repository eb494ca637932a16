//! Scores of hosts for one request class, with an index that finds the best hosts in order without a full scan.
//!
//! Nine of ten requests equal the previous request, and a placement changes one host. Therefore each class stores the
//! score of every host, recomputes only the scores of changed hosts, and finds the lowest score through the minima of
//! blocks of hosts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of hosts per block. The search reads the minimum of a block before the scores in the block. 64 scores fill
/// two cache lines.
const BLOCK_SIZE: usize = 64;

/// Score of a host; a lower score is better.
pub(crate) type Score = u16;

/// Score of a host that cannot accept the request.
pub(crate) const UNSUITABLE: Score = Score::MAX;

/// Scores of the hosts, indexed by number. The engine uses the rank of a host as its number here
/// ([`HostOrder`](super::host_order::HostOrder)).
#[derive(Debug, Default)]
pub(crate) struct ScoreIndex {
    scores: Vec<Score>,
    /// Minimum of each block of scores.
    block_minima: Vec<Score>,
    /// Minimum of each block of `block_minima`.
    superblock_minima: Vec<Score>,
}

impl ScoreIndex {
    /// Creates the scores of the hosts 0, 1, 2, ... in this order.
    pub(crate) fn new(scores: Vec<Score>) -> Self {
        let block_minima: Vec<Score> = scores.chunks(BLOCK_SIZE).map(minimum_score).collect();
        let superblock_minima = block_minima.chunks(BLOCK_SIZE).map(minimum_score).collect();
        Self { scores, block_minima, superblock_minima }
    }

    /// Sets the score of a host. If hosts with lower numbers have no score yet, their score becomes [`UNSUITABLE`].
    pub(crate) fn set(&mut self, host: usize, score: Score) {
        if self.scores.len() <= host {
            self.scores.resize(host + 1, UNSUITABLE);
            self.block_minima.resize(self.scores.len().div_ceil(BLOCK_SIZE), UNSUITABLE);
            self.superblock_minima.resize(self.block_minima.len().div_ceil(BLOCK_SIZE), UNSUITABLE);
        }
        let before = std::mem::replace(&mut self.scores[host], score);
        if let Some(before) = update_minimum(&self.scores, &mut self.block_minima, host, before) {
            update_minimum(
                &self.block_minima,
                &mut self.superblock_minima,
                host / BLOCK_SIZE,
                before,
            );
        }
    }

    /// Sets the scores of several hosts, at most `count`. If a host is listed several times, its last score counts.
    pub(crate) fn set_all(&mut self, count: usize, scores: impl Iterator<Item = (usize, Score)>) {
        // For many hosts, one computation of all minima takes less time than an update for each host.
        if count < self.block_minima.len() {
            scores.for_each(|(host, score)| self.set(host, score));
            return;
        }
        for (host, score) in scores {
            if self.scores.len() <= host {
                self.scores.resize(host + 1, UNSUITABLE);
            }
            self.scores[host] = score;
        }
        *self = Self::new(std::mem::take(&mut self.scores));
    }

    /// Returns the score of a host; [`UNSUITABLE`] for a host without a score.
    pub(crate) fn get(&self, host: usize) -> Score {
        self.scores.get(host).copied().unwrap_or(UNSUITABLE)
    }

    /// Returns the host with the lowest score; if several hosts have this score, the host with the lowest number.
    pub(crate) fn best_host(&self) -> Option<(Score, usize)> {
        let score = minimum_score(&self.superblock_minima);
        if score == UNSUITABLE {
            return None;
        }
        let superblock = find_minimum(&self.superblock_minima, score)?;
        let block = find_minimum_in_block(&self.block_minima, superblock, score)?;
        Some((score, find_minimum_in_block(&self.scores, block, score)?))
    }

    /// Returns the suitable hosts by ascending score; hosts with equal scores are ordered by number. `scratch` contains
    /// buffers that are reused between calls.
    pub(crate) fn hosts_by_score<'a>(
        &'a mut self,
        scratch: &'a mut SearchBuffers,
    ) -> HostsByScore<'a> {
        scratch.heap.clear();
        HostsByScore { scores: self, buffers: scratch, is_heap_built: false }
    }
}

/// Buffers that [`ScoreIndex::hosts_by_score`] reuses between calls.
#[derive(Debug, Default)]
pub(crate) struct SearchBuffers {
    /// Hosts that the iterator has already returned, with their scores. In the index, their score is [`UNSUITABLE`]
    /// until the iterator is dropped.
    returned_hosts: Vec<(Score, usize)>,
    heap: BinaryHeap<Reverse<(Score, u32, bool)>>,
}

/// Hosts whose order by score may change, because preferences that depend on other pods add points. Each host is stored
/// with its points and its number; the host with the fewest points is removed first.
pub(crate) type ComparedHosts = BinaryHeap<Reverse<(i64, usize)>>;

/// Number of hosts that are found by repeated searches for the minimum. Building the heap is expensive, so only further
/// hosts come from the heap.
const MAX_REPEATED_SEARCHES: usize = 32;

/// Iterator over the hosts by ascending score.
#[derive(Debug)]
pub(crate) struct HostsByScore<'a> {
    scores: &'a mut ScoreIndex,
    /// The heap in the buffers contains hosts (`true`), and blocks with the number of their first host (`false`). A
    /// block sorts before all its hosts, so it is replaced by its hosts before any of these hosts is needed.
    buffers: &'a mut SearchBuffers,
    is_heap_built: bool,
}

impl HostsByScore<'_> {
    fn build_heap(&mut self) {
        let blocks =
            self.scores.block_minima.iter().enumerate().filter(|(_, score)| **score != UNSUITABLE);
        let blocks = blocks.map(|(block, &score)| heap_entry(score, block * BLOCK_SIZE, false));
        self.buffers.heap.extend(blocks);
        self.is_heap_built = true;
    }
}

impl Iterator for HostsByScore<'_> {
    type Item = (Score, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if !self.is_heap_built {
            if self.buffers.returned_hosts.len() < MAX_REPEATED_SEARCHES {
                let (score, host) = self.scores.best_host()?;
                self.scores.set(host, UNSUITABLE);
                self.buffers.returned_hosts.push((score, host));
                return Some((score, host));
            }
            self.build_heap();
        }
        loop {
            let Reverse((score, number, is_host)) = self.buffers.heap.pop()?;
            let number = number as usize;
            if is_host {
                return Some((score, number));
            }
            let end = self.scores.scores.len().min(number + BLOCK_SIZE);
            let hosts = (number..end).filter(|host| self.scores.scores[*host] != UNSUITABLE);
            self.buffers
                .heap
                .extend(hosts.map(|host| heap_entry(self.scores.scores[host], host, true)));
        }
    }
}

impl Drop for HostsByScore<'_> {
    fn drop(&mut self) {
        for (score, host) in self.buffers.returned_hosts.drain(..) {
            self.scores.set(host, score);
        }
    }
}

fn heap_entry(score: Score, number: usize, is_host: bool) -> Reverse<(Score, u32, bool)> {
    Reverse((score, u32::try_from(number).unwrap_or(u32::MAX), is_host))
}

/// Updates the minimum of the block that contains a changed value. Returns the previous minimum, or `None` if the
/// minimum is unchanged.
fn update_minimum(
    values: &[Score],
    minima: &mut [Score],
    index: usize,
    old_score: Score,
) -> Option<Score> {
    let (now, block) = (values[index], index / BLOCK_SIZE);
    let least = minima[block];
    if now <= least {
        minima[block] = now;
    } else if old_score == least {
        let end = values.len().min((block + 1) * BLOCK_SIZE);
        minima[block] = minimum_score(&values[block * BLOCK_SIZE..end]);
    }
    (minima[block] != least).then_some(least)
}

/// Returns the position of the first minimum in a block of `values`. `minimum` is the minimum of the block.
fn find_minimum_in_block(values: &[Score], block: usize, minimum: Score) -> Option<usize> {
    let start = block * BLOCK_SIZE;
    let end = values.len().min(start + BLOCK_SIZE);
    find_minimum(values.get(start..end)?, minimum).map(|offset| start + offset)
}

/// Returns the minimum of the scores. The compiler can vectorise this form of the loop.
fn minimum_score(scores: &[Score]) -> Score {
    scores.iter().fold(UNSUITABLE, |least, &score| least.min(score))
}

/// Returns the position of the first minimum of the scores. `minimum` is their minimum. The search has two steps,
/// because the compiler vectorises both the search for the minimum and the search for a value in a short slice.
fn find_minimum(scores: &[Score], minimum: Score) -> Option<usize> {
    let (at, part) =
        scores.chunks(16).enumerate().find(|(_, part)| minimum_score(part) == minimum)?;
    Some(at * 16 + part.iter().position(|score| *score == minimum)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hosts_by_score_equal_sorted_scores(
            // Enough hosts for several blocks of `block_minima`.
            empty in prop_oneof![Just(0_usize), 4_000_usize..9_000],
            first in prop::collection::vec(prop_oneof![0_u16..20, Just(UNSUITABLE)], 0..300),
            changes in prop::collection::vec((0_usize..330, prop_oneof![0_u16..20, Just(UNSUITABLE)]), 0..100),
        ) {
            let first = [vec![UNSUITABLE; empty], first].concat();
            let mut plain = first.clone();
            let mut scores = ScoreIndex::new(first.clone());
            let mut scratch = SearchBuffers::default();
            let spread_out = |(host, score): (usize, Score)| {
                (host + if host.is_multiple_of(4) { 0 } else { empty }, score)
            };
            let changes: Vec<_> = changes.into_iter().map(spread_out).collect();
            for &(host, score) in &changes {
                plain.resize(plain.len().max(host + 1), UNSUITABLE);
                plain[host] = score;
                scores.set(host, score);
                prop_assert_eq!(scores.get(host), score);
            }
            let mut sorted: Vec<_> =
                plain.iter().enumerate().filter(|(_, s)| **s != UNSUITABLE).map(|(h, s)| (*s, h)).collect();
            sorted.sort_unstable();
            prop_assert_eq!(scores.best_host(), sorted.first().copied());
            let mut set_together = ScoreIndex::new(first);
            set_together.set_all(changes.len(), changes.into_iter());
            prop_assert_eq!(&set_together.scores, &plain);
            prop_assert_eq!(set_together.best_host(), sorted.first().copied());
            for _ in 0..2 {
                prop_assert_eq!(scores.hosts_by_score(&mut scratch).collect::<Vec<_>>(), sorted.clone());
            }
            prop_assert_eq!(&scores.scores, &plain);
        }
    }
}
