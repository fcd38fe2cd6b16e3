//! Classes by name, by the beginning of a name, or by number. A label may list several names, as ImageNet's do.

/// The number of classes that an error lists.
const LISTED: usize = 5;

/// The indices of the classes, each once, in the order given.
pub fn find_all(asked: &[String], labels: &[String], classes: usize) -> anyhow::Result<Vec<usize>> {
    let mut found = Vec::new();
    for name in asked {
        let class = find(name, labels, classes)?;
        if !found.contains(&class) {
            found.push(class);
        }
    }
    Ok(found)
}

fn find(asked: &str, labels: &[String], classes: usize) -> anyhow::Result<usize> {
    anyhow::ensure!(classes > 0, "--class {asked}: this model has no classification head, so it has no classes");
    let wanted = asked.trim().to_lowercase();
    let having = |fits: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..labels.len()).filter(|&class| names(&labels[class]).iter().any(|name| fits(name))).collect()
    };
    let exact = having(&|name| name == wanted);
    if let ([], Ok(number)) = (exact.as_slice(), wanted.parse::<usize>()) {
        anyhow::ensure!(number < classes, "--class {asked}: there are classes 0 to {}", classes - 1);
        return Ok(number);
    }
    let fitting = match exact.is_empty() && !wanted.is_empty() {
        true => having(&|name| name.starts_with(&wanted)),
        false => exact,
    };
    match fitting.as_slice() {
        [class] => Ok(*class),
        [] => anyhow::bail!("--class {asked}: {}", unknown(&wanted, labels, classes)),
        several => {
            let count = several.len();
            anyhow::bail!("--class {asked}: {count} classes have such a name: {}", listed(several, labels))
        }
    }
}

/// The label, and each of the names it lists.
fn names(label: &str) -> Vec<String> {
    let label = label.trim().to_lowercase();
    let parts: Vec<String> = label.split(',').map(|part| part.trim().to_string()).collect();
    if parts.len() > 1 { [vec![label], parts].concat() } else { parts }
}

fn unknown(wanted: &str, labels: &[String], classes: usize) -> String {
    if labels.is_empty() {
        return format!("this model does not know its classes' names; give a number from 0 to {}", classes - 1);
    }
    let likeness = |class: usize| {
        let alike = |name: &String| if name.contains(wanted) { 1.0 } else { strsim::jaro_winkler(name, wanted) };
        names(&labels[class]).iter().map(alike).fold(0.0, f64::max)
    };
    let mut near: Vec<(f64, usize)> = (0..labels.len()).map(|class| (likeness(class), class)).collect();
    near.retain(|(likeness, _)| *likeness > 0.75 && !wanted.is_empty());
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let near: Vec<usize> = near.into_iter().map(|(_, class)| class).collect();
    match near.is_empty() {
        false => format!("the model has no such class; near it are {}", listed(&near, labels)),
        true => {
            let all: Vec<usize> = (0..labels.len()).collect();
            format!("the model has no such class; it has {} (or give a number)", listed(&all, labels))
        }
    }
}

/// The first few classes with their numbers.
fn listed(classes: &[usize], labels: &[String]) -> String {
    // A few classes are listed in full, rather than all but one or two.
    let shown = if classes.len() <= 2 * LISTED { classes.len() } else { LISTED };
    let mut text: Vec<String> = classes[..shown].iter().map(|&class| format!("{} ({class})", labels[class])).collect();
    if shown < classes.len() {
        text.push(format!("and {} more", classes.len() - shown));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<String> {
        ["tench, Tinca tinca", "crane", "tabby, tabby cat", "tiger cat", "crane", "7"].map(String::from).to_vec()
    }

    fn one(asked: &str) -> Result<usize, String> {
        find(asked, &labels(), 6).map_err(|error| error.to_string())
    }

    #[test]
    fn classes_have_names_beginnings_and_numbers() {
        for (asked, class) in
            [("tench", 0), ("Tinca Tinca", 0), ("tench, tinca tinca", 0), ("TAB", 2), ("tiger", 3), ("4", 4), ("7", 5)]
        {
            assert_eq!(one(asked), Ok(class), "{asked}");
        }
        let asked = ["tiger", "0", "tench"].map(String::from);
        assert_eq!(find_all(&asked, &labels(), 6).unwrap(), [3, 0]);
    }

    #[test]
    fn what_is_not_one_class_is_said_with_those_near_it() {
        assert_eq!(one("crane"), Err("--class crane: 2 classes have such a name: crane (1), crane (4)".into()));
        let several = one("t").unwrap_err();
        assert!(several.contains("3 classes") && several.contains("tiger cat (3)"), "{several}");
        let near = one("tigre cat").unwrap_err();
        assert!(near.contains("near it are tiger cat (3)"), "{near}");
        assert!(one("cat").unwrap_err().contains("tabby, tabby cat (2), tiger cat (3)"));
        assert!(one("zebra").unwrap_err().contains("it has tench, Tinca tinca (0), crane (1)"));
        assert_eq!(one("6"), Err("--class 6: there are classes 0 to 5".into()));
        assert!(one("").unwrap_err().contains("no such class"));
        let unnamed = find("cat", &[], 9).unwrap_err().to_string();
        assert!(unnamed.contains("a number from 0 to 8"), "{unnamed}");
        assert!(find("cat", &[], 0).unwrap_err().to_string().contains("no classification head"));
    }
}
