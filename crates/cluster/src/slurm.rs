//! Slurm's compressed lists of hosts.

/// The first host of a list as `node[003-005,010],login1`, which is `node003`; `None` if it is not a list.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let mut first = String::new();
    let mut rest = list.trim();
    // A name may have several brackets, as in `rack[1-2]node[03,07]`: the first of each makes the first host.
    loop {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let (plain, from) = rest.split_at(end);
        first += plain;
        let Some(bracket) = from.strip_prefix('[') else { break };
        let (ranges, after) = bracket.split_once(']')?;
        let number = ranges.split([',', '-']).next()?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        first += number;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    Some(first).filter(|host| is_host(host))
}

fn is_host(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
    !text.is_empty() && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("node7", "node7"),
            ("a,b,c", "a"),
            ("node[003-005,010],login1", "node003"),
            ("node[12]", "node12"),
            ("rack[1-2]node[03,07]", "rack1node03"),
            ("gpu[1-4].example.org", "gpu1.example.org"),
            ("n-[0007,9]x,y", "n-0007x"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for wrong in ["", ",", "node[", "node[]", "node[a-b]", "node]", "a b", "node[1-2", "$(reboot)"] {
            assert_eq!(first_host(wrong), None, "{wrong}");
        }
    }
}
