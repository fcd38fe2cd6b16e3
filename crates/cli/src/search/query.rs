//! `vit search INDEX`: what is most similar to words and images, and near duplicates.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use vit::{Embed, Pool, TextEmbed};
use vit_data::Image;
use vit_search::{DuplicateOptions, Hit, Index, SearchError};
use vit_system::{npy, regular_file};

use super::page::{self, PageSection};
use super::{QueryArguments, shown_folder};
use crate::images::{Source, sources};
use crate::table::{Align, Table, thousands};
use crate::terminal::printable;
use crate::{Outcome, terminal};

/// What was found, and where its images are.
pub struct SearchResult {
    /// The words of the page's title.
    pub title: String,
    pub subtitle: String,
    /// The images that were looked for.
    pub queries: Vec<(String, Image)>,
    pub sections: Vec<PageSection>,
}

pub fn run(arguments: &QueryArguments) -> anyhow::Result<Outcome> {
    let path = arguments.index.as_deref().unwrap_or(Path::new("."));
    let index = Index::open(path)?;
    ensure!(!index.is_empty(), "{}: this index holds no images; fill it with `vit search index`", path.display());
    let folder = shown_folder(&index.settings().files);
    let result = match arguments.near_duplicates {
        Some(threshold) => near_duplicates(arguments, &index, &folder, threshold)?,
        None => similar(arguments, &index, &folder)?,
    };
    if let Some(out) = &arguments.html {
        page::write(out, &result, &index.settings().files, &arguments.how)?;
        terminal::note(format_args!("{}", out.display()));
    }
    Ok(Outcome::Fine)
}

fn similar(arguments: &QueryArguments, index: &Index, folder: &Path) -> anyhow::Result<SearchResult> {
    ensure!(
        !arguments.words.is_empty() || !arguments.image.is_empty() || !arguments.vector.is_empty(),
        "say what to look for: words, --image FILE, --vector FILE, or --near-duplicates"
    );
    let queries = query_images(arguments)?;
    let query = query_vector(arguments, index, &queries)?;
    let hits = index.search(&query, arguments.top as usize, arguments.how.threads())?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let hits: Vec<_> =
            hits.iter().map(|hit| json!({ "file": folder.join(&hit.file), "score": hit.score })).collect();
        let images: Vec<&String> = queries.iter().map(|(name, _)| name).collect();
        let object = json!({
            "index": index.path(), "words": arguments.words, "images": images, "searched": index.len(), "hits": hits,
        });
        writeln!(out, "{object:#}")?;
    } else {
        let mut table = Table::new(&[("SCORE", Align::Right), ("FILE", Align::Left)]);
        hits.iter().for_each(|hit| table.row(cells(hit, folder).to_vec()));
        table.print(&mut out, |_| None)?;
    }
    let names = queries
        .iter()
        .map(|(name, _)| Path::new(name).file_name().map_or(Cow::from(name), |file| file.to_string_lossy()));
    let words = arguments.words.iter().map(Cow::from);
    let vectors = arguments.vector.iter().map(|path| path.to_string_lossy());
    let title = words.chain(names).chain(vectors).collect::<Vec<Cow<str>>>().join(", ");
    let subtitle = format!(
        "the {} most similar of {} images in {}",
        hits.len(),
        thousands(index.len() as u64),
        index.settings().files.display()
    );
    Ok(SearchResult { title, subtitle, queries, sections: vec![PageSection { title: None, hits }] })
}

fn near_duplicates(
    arguments: &QueryArguments,
    index: &Index,
    folder: &Path,
    threshold: f64,
) -> anyhow::Result<SearchResult> {
    let options = DuplicateOptions { threshold, threads: arguments.how.threads() };
    let progress = progress(index.len());
    let mut groups = index.near_duplicates(options, |share| progress.set_position((share * 1000.0) as u64))?;
    progress.finish_and_clear();
    let (found, images) = (groups.len(), groups.iter().map(|group| group.files.len()).sum::<usize>());
    groups.truncate(arguments.top as usize);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let file = |hit: &Hit| json!({ "file": folder.join(&hit.file), "score": hit.score });
        let shown: Vec<_> = groups.iter().map(|group| group.files.iter().map(file).collect::<Vec<_>>()).collect();
        let object = json!({
            "index": index.path(), "threshold": threshold, "searched": index.len(), "images": images, "found": found,
            "groups": shown,
        });
        writeln!(out, "{object:#}")?;
    } else if found > 0 {
        let mut table = Table::new(&[("GROUP", Align::Right), ("SCORE", Align::Right), ("FILE", Align::Left)]);
        for (number, group) in groups.iter().enumerate() {
            for hit in &group.files {
                let [score, file] = cells(hit, folder);
                table.row(vec![(number + 1).to_string(), score, file]);
            }
        }
        table.print(&mut out, |_| None)?;
    }
    let all = if found > groups.len() { format!("; {} are shown", groups.len()) } else { String::new() };
    let groups_found = if found == 1 { "1 group".into() } else { format!("{found} groups") };
    let subtitle = format!(
        "{groups_found}, {images} of {} images in {}, with a cosine of at least {threshold}{all}",
        thousands(index.len() as u64),
        index.settings().files.display()
    );
    if !arguments.json {
        terminal::note(&subtitle);
    }
    let section = |(number, group): (usize, vit_search::DuplicateGroup)| PageSection {
        title: Some(format!("Group {}", number + 1)),
        hits: group.files,
    };
    let sections = groups.into_iter().enumerate().map(section).collect();
    Ok(SearchResult { title: "Near duplicates".into(), subtitle, queries: Vec::new(), sections })
}

fn cells(hit: &Hit, folder: &Path) -> [String; 2] {
    [format!("{:.4}", hit.score), printable(&folder.join(&hit.file).display().to_string()).into_owned()]
}

/// A bar of thousandths, where comparing all pairs takes some time.
fn progress(images: usize) -> ProgressBar {
    if images < 20_000 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:32} {percent}% of all pairs  {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1000).with_style(style)
}

/// The images to look for, and their names.
fn query_images(arguments: &QueryArguments) -> anyhow::Result<Vec<(String, Image)>> {
    let sources = sources(&arguments.image)?;
    sources.iter().map(|source: &Source| Ok((source.name(), arguments.how.decode(source)?))).collect()
}

/// The mean direction of words, images and vectors.
fn query_vector(arguments: &QueryArguments, index: &Index, images: &[(String, Image)]) -> anyhow::Result<Vec<f32>> {
    let mut vectors = arguments.vector.iter().map(|path| read_vector(path)).collect::<anyhow::Result<Vec<_>>>()?;
    if !arguments.words.is_empty() || !images.is_empty() {
        vectors.extend(embedded(arguments, index, images)?);
    }
    let dim = index.settings().dim;
    if let Some(other) = vectors.iter().find(|vector| vector.len() != dim) {
        return Err(SearchError::Dimension { found: other.len(), expected: dim }.into());
    }
    let sum = |position: usize| vectors.iter().map(|vector| vector[position]).sum();
    Ok((0..dim).map(sum).collect())
}

/// The vectors of words and images, of length 1, by the model of the index.
fn embedded(arguments: &QueryArguments, index: &Index, images: &[(String, Image)]) -> anyhow::Result<Vec<Vec<f32>>> {
    let (how, settings) = (&arguments.how, index.settings());
    let model: PathBuf = arguments.model.clone().unwrap_or_else(|| settings.model.path.clone());
    let checkpoint = how.checkpoint(&model).with_context(|| {
        let index = index.path().display();
        format!("{index} is searched with the model it was made with, whose new place --model names")
    })?;
    if checkpoint.fingerprint() != settings.model.fingerprint {
        let (path, indexed) = (index.path().into(), settings.model.path.clone());
        return Err(SearchError::OtherModel { path, indexed, given: model }.into());
    }
    let mut vectors = Vec::new();
    if !arguments.words.is_empty() {
        let options = how.options(arguments.words.len());
        let tower = TextEmbed::new(&checkpoint, &options).with_context(|| settings.model.path.display().to_string())?;
        let mut tower = tower.normalised();
        vectors.extend(tower.embed(&arguments.words)?);
    }
    if !images.is_empty() {
        let mut embed = Embed::new(checkpoint, Pool::Features, &how.options(images.len()))?.normalised();
        let images: Vec<Image> = images.iter().map(|(_, image)| image.clone()).collect();
        vectors.extend(embed.embed(&images)?);
    }
    Ok(vectors)
}

/// A vector of a NumPy file, scaled to length 1.
fn read_vector(path: &Path) -> anyhow::Result<Vec<f32>> {
    let bytes = regular_file::read(path).with_context(|| path.display().to_string())?;
    let (header, data) = npy::parse(&bytes).map_err(|what| anyhow!("{}: {what}", path.display()))?;
    ensure!(header.descr == "<f4", "{}: its elements are {}; save it as float32", path.display(), header.descr);
    let vector: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let elements = header.shape.iter().product::<usize>();
    ensure!(
        elements == vector.len(),
        "{}: its shape is {:?}, and it has {} elements",
        path.display(),
        header.shape,
        vector.len()
    );
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    Ok(vector.into_iter().map(|v| (f64::from(v) / length) as f32).collect())
}
