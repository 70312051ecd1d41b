//! Sharing out what there is by what it is worth.

/// Whole numbers `min(cap, x * worth)` that add up to `total`, or to all caps if these are less: `x` is one number for
/// all, so that nobody gets more when somebody else joins (ALGORITHMS 5.1, oracle `water_fill`). What is left by rounding
/// goes to those who lost most by it.
pub fn water_fill(worth: &[f64], total: usize, caps: &[usize]) -> Vec<usize> {
    assert_eq!(worth.len(), caps.len(), "a cap for each");
    let total = total.min(caps.iter().sum());
    let largest = worth.iter().copied().filter(|worth| worth.is_finite()).fold(0.0, f64::max);
    // What is worth nothing gets what nobody else has room for.
    let least = largest * 1e-9 + 1e-300;
    let worth: Vec<f64> = worth.iter().map(|worth| if worth.is_finite() { worth.max(least) } else { least }).collect();
    let at = |x: f64| worth.iter().zip(caps).map(move |(worth, cap)| (x * worth).min(*cap as f64));
    let most = caps.iter().copied().max().unwrap_or(0) as f64;
    let (mut low, mut high) = (0.0, worth.iter().fold(1.0, |high: f64, worth| high.max(most / worth + 1.0)));
    for _ in 0..2000 {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        if at(middle).sum::<f64>() < total as f64 { low = middle } else { high = middle }
    }
    let mut shares: Vec<usize> = at(low).map(|share| (share + 1e-9) as usize).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let lost: Vec<f64> = at(high).zip(&shares).map(|(share, whole)| share - *whole as f64).collect();
    order.sort_by(|a, b| lost[*b].total_cmp(&lost[*a]));
    let mut left = total - shares.iter().sum::<usize>();
    while left > 0 {
        for &i in &order {
            if left > 0 && shares[i] < caps[i] {
                shares[i] += 1;
                left -= 1;
            }
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::conformance::Random;

    #[test]
    fn shares_add_up_and_keep_to_their_caps() {
        let mut random = Random::new(3);
        for _ in 0..2000 {
            let layers = 1 + random.below(40);
            let worth: Vec<f64> = (0..layers).map(|_| f64::from(random.normal() * 3.0).exp()).collect();
            let caps: Vec<usize> = (0..layers).map(|_| random.below(60)).collect();
            let total = random.below(50 * layers);
            let shares = water_fill(&worth, total, &caps);
            assert_eq!(shares.iter().sum::<usize>(), total.min(caps.iter().sum()));
            assert!(shares.iter().zip(&caps).all(|(share, cap)| share <= cap));
            for i in 1..layers {
                let (a, b) = (i - 1, i);
                if worth[a] > worth[b] && caps[a] > shares[a] {
                    assert!(shares[a] + 1 >= shares[b], "{worth:?} {shares:?}");
                }
            }
        }
    }

    #[test]
    fn nobody_gets_more_when_somebody_joins() {
        let mut random = Random::new(4);
        for _ in 0..500 {
            let layers = 2 + random.below(30);
            let worth: Vec<f64> = (0..layers).map(|_| f64::from(random.normal() * 2.0).exp()).collect();
            let caps = vec![64; layers];
            let total = random.below(40 * layers);
            let (all, before) = (water_fill(&worth, total, &caps), water_fill(&worth[..layers - 1], total, &caps[1..]));
            // Rounding may hand one on.
            assert!(before.iter().zip(&all).all(|(before, after)| *after <= before + 1), "{before:?} {all:?}");
        }
    }

    #[test]
    fn what_is_worth_nothing_gets_what_is_left() {
        assert_eq!(water_fill(&[0.0, 0.0, 1.0], 10, &[8, 8, 6]), [2, 2, 6]);
        assert_eq!(water_fill(&[f64::NAN, 1.0], 4, &[8, 3]), [1, 3]);
        assert!(water_fill(&[], 4, &[]).is_empty());
        assert_eq!(water_fill(&[1.0, 3.0], 8, &[100, 100]), [2, 6]);
    }
}
