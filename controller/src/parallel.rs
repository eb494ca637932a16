//! Runs a function on many items on all cores, and keeps the order of the items.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of items below which starting threads takes more time than it saves.
const MIN_ITEMS: usize = 256;
/// Number of items that a thread takes from the queue at a time. Thus a core that is busy with other work processes
/// fewer items.
const BLOCK_SIZE: usize = 64;

/// Calls `work` for all items, on all cores if there are many items. Returns the results in the order of the items.
pub(crate) fn map<I, R>(items: I, work: impl Fn(I::Item) -> R + Sync) -> Vec<R>
where
    I: IntoIterator<IntoIter: ExactSizeIterator + Send, Item: Send>,
    R: Send,
{
    let items = items.into_iter();
    let count = items.len();
    // The number of cores is read only for long lists, because the standard library opens a dozen files to read it.
    let cores = || thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if count < MIN_ITEMS { 1 } else { cores() };
    if threads < 2 {
        return items.map(work).collect();
    }
    let remaining = Mutex::new(items.enumerate());
    let process_blocks = || {
        let mut done: Vec<(usize, Vec<R>)> = Vec::new();
        loop {
            let block: Vec<(usize, I::Item)> = {
                let mut remaining = remaining.lock().unwrap_or_else(PoisonError::into_inner);
                remaining.by_ref().take(BLOCK_SIZE).collect()
            };
            let Some((first, _)) = block.first() else { return done };
            done.push((*first, block.into_iter().map(|(_, item)| work(item)).collect()));
        }
    };
    let mut blocks = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(process_blocks)).collect();
        let mut blocks = process_blocks();
        for other in others {
            match other.join() {
                Ok(done) => blocks.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        blocks
    });
    blocks.sort_unstable_by_key(|(first, _)| *first);
    let mut all = Vec::with_capacity(count);
    for (_, block) in blocks {
        all.extend(block);
    }
    all
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_have_the_order_of_the_items() {
        let numbers: Vec<u32> = (0..10_007).collect();
        let doubled: Vec<u32> = numbers.iter().map(|number| number * 2).collect();
        assert_eq!(super::map(&numbers, |number| number * 2), doubled);
        assert_eq!(super::map(&numbers[..3], |number| number * 2), doubled[..3]);
    }
}
