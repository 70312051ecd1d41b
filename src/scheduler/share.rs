//! How the tokens of a step that prompts may have are shared among them.

use crate::memory::SequenceId;

/// The part of a step that the oldest prompt gets, whatever else there is to read.
const OLDEST: u32 = 4;

/// How many of `rows` tokens each of the prompts gets, in the order they are to be taken. Prompts are given with the
/// tokens left to read, oldest first. Short ones are read first, for they are soonest answered; but a quarter is the
/// oldest one's, so that no prompt waits for ever. Nobody gets fewer than `least`, but for the last.
pub(super) fn of_prompts(
    prompts: &[(SequenceId, u32)],
    rows: u32,
    (least, grain): (u32, u32),
) -> Vec<(SequenceId, u32)> {
    let Some((oldest, _)) = prompts.first() else { return Vec::new() };
    let mut left = rows;
    let mut order: Vec<(SequenceId, u32)> = prompts.to_vec();
    order.sort_by_key(|(_, pending)| *pending);
    let mut shares = Vec::new();
    if order.len() > 1 {
        let guaranteed = (rows / OLDEST / grain * grain).max(least).min(left);
        left -= guaranteed;
        shares.push((*oldest, guaranteed));
        order.retain(|(id, _)| id != oldest);
    }
    for (id, pending) in order {
        let share = pending.min(left);
        left -= share;
        shares.push((id, share));
    }
    // What is left is the oldest one's, too.
    if let Some((_, share)) = shares.first_mut() {
        *share += left;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(pending: &[u32], rows: u32) -> Vec<(u32, u32)> {
        let prompts: Vec<_> = (0..).map(SequenceId).zip(pending.iter().copied()).collect();
        of_prompts(&prompts, rows, (32, 16)).into_iter().map(|(id, share)| (id.0, share)).collect()
    }

    #[test]
    fn short_prompts_are_read_first_and_the_oldest_one_never_waits() {
        assert_eq!(shares(&[], 512), []);
        assert_eq!(shares(&[8000], 512), [(0, 512)]);
        assert_eq!(shares(&[8000, 100], 512), [(0, 412), (1, 100)]);
        assert_eq!(shares(&[8000, 5000, 300], 512), [(0, 128), (2, 300), (1, 84)]);
        assert_eq!(shares(&[8000, 5000, 6000], 512), [(0, 128), (1, 384), (2, 0)]);
        assert_eq!(shares(&[100, 90], 32), [(0, 32), (1, 0)]);
        for rows in [16, 48, 100, 512] {
            let total: u32 = shares(&[700, 20, 300, 44], rows).iter().map(|(_, share)| share).sum();
            assert_eq!(total, rows);
        }
    }
}
