//! The report: model card and all figures on one HTML page that needs nothing but itself.

use vit_plot::escape;

use super::{Figure, Inspection};

const STYLE: &str = include_str!("../page/style.css");
const REPORT: &str = include_str!("../page/report.css");

/// A page with the facts of the card, every figure with its explanation and the names of its files, and what is missing.
pub fn report(
    title: &str,
    subtitle: &str,
    card: &[(&str, String)],
    inspection: &Inspection,
    files: &[Vec<String>],
) -> String {
    let facts: String = card
        .iter()
        .map(|(name, value)| format!("<tr><th>{}</th><td>{}</td></tr>\n", escape(name), escape(value)))
        .collect();
    let contents: String = (inspection.figures.iter())
        .map(|figure| format!("<a href=\"#{}\">{}</a>\n", figure.name, escape(&figure.title)))
        .collect();
    let figures: String = inspection.figures.iter().zip(files).map(|(figure, files)| section(figure, files)).collect();
    let missing = match inspection.missing.as_slice() {
        [] => String::new(),
        missing => {
            let items: String =
                missing.iter().map(|missing| format!("<li>{}</li>\n", escape(&missing.reason))).collect();
            format!("<section><h2>Not drawn</h2>\n<ul>\n{items}</ul></section>\n")
        }
    };
    let (title, subtitle) = (escape(title), escape(subtitle));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}{REPORT}</style>\n\
         </head>\n<body>\n<main>\n<h1>{title}</h1>\n<p>{subtitle}</p>\n<nav>\n{contents}</nav>\n\
         <section><table>\n{facts}</table></section>\n{figures}{missing}</main>\n</body>\n</html>\n"
    )
}

/// Text whose names between backticks are set as code.
fn with_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(i, part)| if i % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

fn section(figure: &Figure, files: &[String]) -> String {
    let links: Vec<String> = files.iter().map(|file| format!("<a href=\"{0}\">{0}</a>", escape(file))).collect();
    format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p>{}</p>\n<div class=\"drawing\">{}</div>\n<p class=\"files\">{}</p>\n</section>\n",
        figure.name,
        escape(&figure.title),
        with_code(&figure.text),
        figure.scene.svg(),
        links.join(" ")
    )
}
