//! The page of a study: figures, tables and the study itself in one file.

use vit_plot::escape;

use super::StudyTable;
use super::report::Figure;

const STYLE: &str = include_str!("page.css");

pub(super) fn page(name: &str, described: &[String], figures: &[Figure], all: &StudyTable, file: &str) -> String {
    let described: String = described.iter().map(|line| format!("<p>{}</p>\n", escape(line))).collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{name}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>{name}</h1>\n{described}",
        name = escape(name)
    );
    for Figure { title, svg, table, .. } in figures {
        page += &format!("<h2>{}</h2>\n<figure>{}</figure>\n", escape(title), inline(svg));
        if let Some(table) = table {
            page += &rows(table);
        }
    }
    page += &format!("<h2>All</h2>\n{}", rows(all));
    // Line by line, since line breaks are control characters.
    let file: Vec<String> = file.lines().map(escape).collect();
    page + &format!("<h2>The study</h2>\n<pre>{}</pre>\n</body>\n</html>\n", file.join("\n"))
}

/// A figure without the declaration of an XML file.
fn inline(svg: &str) -> &str {
    svg.find("<svg").map_or(svg, |start| &svg[start..])
}

fn rows(table: &StudyTable) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells = cells.iter().enumerate().map(|(at, cell)| {
            let class = if at < table.names { "" } else { " class=\"number\"" };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let body: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
    format!("<div class=\"table\"><table>\n{}{body}</table></div>\n", row(&table.headings, "th"))
}
