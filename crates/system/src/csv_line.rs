//! One way to write CSV.

use std::fmt::Display;

/// A line of a CSV file with its end; fields are quoted where they must be.
///
/// ```
/// assert_eq!(vit_system::csv_line(["a, \"b\".jpg", "3"]), "\"a, \"\"b\"\".jpg\",3\n");
/// ```
pub fn csv_line(fields: impl IntoIterator<Item: Display>) -> String {
    let mut writer = csv::WriterBuilder::new().buffer_capacity(256).from_writer(Vec::new());
    let record: csv::StringRecord = fields.into_iter().map(|field| field.to_string()).collect();
    writer.write_record(&record).expect("a Vec takes every record");
    let line = writer.into_inner().expect("a Vec takes every flush");
    String::from_utf8(line).expect("fields are UTF-8")
}
