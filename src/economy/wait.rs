//! How long a prompt waits for a group, in closed form: an M/G/c queue by Sakasegawa's approximation (H. Sakasegawa, "An
//! approximation formula Lq = αρ^β/(1-ρ)", Annals of the Institute of Statistical Mathematics 29, 1977) with the factor
//! (1 + cv²)/2 for service times that are not exponential (A. O. Allen, 1978; J. F. Cunneen). For one server it is exact (M/M/1,
//! M/D/1); for two at 60 % it is 6 % above Erlang's C.

/// What a queue is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Queue {
    /// Requests a second.
    pub rate: f64,
    /// Seconds of one in a server.
    pub takes_s: f64,
    /// Standard deviation of these, over their mean.
    pub spread: f64,
}

impl Queue {
    /// The share of their time that so many servers are busy.
    pub(super) fn busy(&self, servers: f64) -> f64 {
        self.rate * self.takes_s / servers
    }

    /// The share of requests that wait at all.
    fn waiting(&self, servers: f64) -> f64 {
        self.busy(servers).powf((2.0 * (servers + 1.0)).sqrt() - 1.0)
    }

    /// Seconds that a request waits which waits at all, in the mean.
    fn wait_of_waiting(&self, servers: f64) -> f64 {
        let varied = (1.0 + self.spread * self.spread) / 2.0;
        self.takes_s * varied / (servers * (1.0 - self.busy(servers)))
    }

    /// Seconds that a request waits: in the mean, or so many that this share of requests waits no longer, if who waits does
    /// so for times that are exponential. Endless where more comes than is served.
    pub(super) fn wait(&self, servers: f64, share: Option<f64>) -> f64 {
        if self.busy(servers) >= 1.0 {
            return f64::INFINITY;
        }
        let (waiting, each) = (self.waiting(servers), self.wait_of_waiting(servers));
        match share {
            None => waiting * each,
            Some(share) if waiting <= 1.0 - share => 0.0,
            Some(share) => each * (waiting / (1.0 - share)).ln(),
        }
    }
}

/// The smallest count from 1 on for which something holds that holds for all larger ones; `None` beyond the bound.
pub(super) fn least(most: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let mut high = 1;
    while !holds(high) {
        high = (high < most).then(|| (high * 2).min(most))?;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_is_exact_and_more_of_them_wait_less() {
        let queue = Queue { rate: 0.6, takes_s: 1.0, spread: 1.0 };
        assert!((queue.wait(1.0, None) - 1.5).abs() < 1e-12, "ρ/(1-ρ) of a service time");
        let even = Queue { spread: 0.0, ..queue };
        assert!((even.wait(1.0, None) - 0.75).abs() < 1e-12, "half of it: M/D/1");
        // Erlang C of two servers at ρ = 0.6: waits 0.5625 of a service time; the approximation says 0.596.
        let two = Queue { rate: 1.2, ..queue };
        assert!((two.wait(2.0, None) / 0.5625 - 1.0).abs() < 0.07, "{}", two.wait(2.0, None));
        assert!(two.wait(3.0, None) < two.wait(2.0, None));
        assert_eq!(two.wait(1.0, None), f64::INFINITY);
        assert!(queue.wait(1.0, Some(0.99)) > queue.wait(1.0, Some(0.9)));
        assert_eq!(queue.wait(40.0, Some(0.5)), 0.0);
    }

    #[test]
    fn the_least_count_is_found() {
        for wanted in 1..200 {
            assert_eq!(least(1_000, |count| count >= wanted), Some(wanted));
        }
        assert_eq!(least(1_000, |_| false), None);
    }
}
