//! Time limits.

use std::time::Duration;

use crate::ClusterError;

/// How long a rank waits for others. The variables `VIT_CLUSTER_TIMEOUT` and `VIT_CLUSTER_SILENCE` set the first two, in
/// seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For all ranks to connect.
    pub rendezvous: Duration,
    /// For a sign of life of a connected rank. Ranks send one four times as often.
    pub silence: Duration,
    /// For a rank that is alive to join a collective call. Long, because a rank may evaluate, save or compile meanwhile.
    pub call: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rendezvous: Duration::from_secs(300),
            silence: Duration::from_secs(15),
            call: Duration::from_secs(30 * 60),
        }
    }
}

impl Limits {
    /// The defaults, changed by the environment.
    pub fn from_environment() -> Result<Limits, ClusterError> {
        let mut limits = Limits::default();
        for (name, limit) in
            [("VIT_CLUSTER_TIMEOUT", &mut limits.rendezvous), ("VIT_CLUSTER_SILENCE", &mut limits.silence)]
        {
            if let Ok(text) = std::env::var(name) {
                let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=1e6).contains(seconds));
                let wrong = || ClusterError::Environment(format!("{name}={text} is not a number of seconds"));
                *limit = Duration::from_secs_f64(seconds.ok_or_else(wrong)?);
            }
        }
        Ok(limits)
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        self.silence / 4
    }
}
