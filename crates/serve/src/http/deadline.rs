//! The time of a request, from `X-Request-Timeout` and the server's own limit.

use std::time::{Duration, Instant};

use axum::http::HeaderMap;

use super::problem::Problem;

/// Seconds (`2`, `0.5`) or milliseconds (`250ms`).
pub const REQUEST_TIMEOUT: &str = "x-request-timeout";

/// When a request that has just arrived must be answered.
pub fn deadline(headers: &HeaderMap, limit: Duration) -> Result<Instant, Problem> {
    let time = match headers.get(REQUEST_TIMEOUT) {
        None => limit,
        Some(value) => value.to_str().ok().and_then(parse).ok_or_else(wrong)?.min(limit),
    };
    Ok(Instant::now() + time)
}

fn wrong() -> Problem {
    Problem::malformed("`X-Request-Timeout` should be seconds like `0.5` or milliseconds like `250ms`, above 0.")
}

fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text, 1.0),
    };
    let plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| plain)? * unit;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_seconds_or_milliseconds() {
        for (text, milliseconds) in [("2", 2000), ("0.5", 500), ("250ms", 250), ("86400", 86_400_000)] {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "0", "-1", "inf", "NaN", "1e9", "ms", "1 s", "+1", ".", "9".repeat(40).as_str()] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
