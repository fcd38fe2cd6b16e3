//! What an inference request means, whichever protocol it came by.

use std::time::Instant;

use super::request::InputImages;
use super::response::{OutputData, OutputTensor};
use crate::engine::{Answer, ServedModel, WorkInput, WorkOutput};
use crate::http::answers::{answers_of, complete};
use crate::http::fields::shortened;
use crate::http::problem::Problem;
use crate::http::{App, urls};

/// The most outputs of a request.
pub const MAX_OUTPUTS: usize = ModelOutput::ALL.len();

/// Images and what to compute of them.
pub struct Inference {
    pub images: InputImages,
    pub outputs: Vec<SelectedOutput>,
    pub deadline: Instant,
}

impl Inference {
    /// Runs the model. The memory of the request must be held until then.
    pub async fn run(self, app: &App, model: &ServedModel) -> Result<Vec<OutputTensor>, Problem> {
        let Self { images, outputs, deadline } = self;
        let (inputs, _held) = match images {
            InputImages::Preprocessed { shape, elements } => (preprocessed(model, &shape, elements)?, Vec::new()),
            InputImages::Encoded(sources) => {
                let (images, held) = urls::fetch_all(app, sources, deadline).await;
                (images.into_iter().map(|image| image.map(WorkInput::Encoded)).collect(), held)
            }
        };
        let features = outputs.iter().any(|output| output.tensor == ModelOutput::Features);
        let wanted = if features { WorkOutput::All } else { WorkOutput::Logits };
        let answers = complete(answers_of(app, model, inputs, wanted, deadline).await?)?;
        Ok(outputs.iter().map(|output| output.of(model, &answers)).collect())
    }
}

/// Divides a tensor into images.
fn preprocessed(
    model: &ServedModel,
    shape: &[usize],
    elements: Vec<f32>,
) -> Result<Vec<Result<WorkInput, Problem>>, Problem> {
    let architecture = &model.card().config.architecture;
    let [height, width] = architecture.image_size();
    let expected = [architecture.channels(), height, width];
    if shape.len() != 4 || shape[1..] != expected {
        let detail =
            format!("The shape is {shape:?}, and this model's input is [images, {}, {height}, {width}].", expected[0]);
        return Err(Problem::malformed(detail));
    }
    if let Some(position) = elements.iter().position(|element| !element.is_finite()) {
        return Err(Problem::malformed(format!("Element {position} of the tensor is NaN or infinite.")));
    }
    let length = expected.iter().product::<usize>().max(1);
    Ok(elements.chunks_exact(length).map(|image| Ok(WorkInput::Tensor(image.to_vec()))).collect())
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ModelOutput {
    Logits,
    Probabilities,
    Features,
}

impl ModelOutput {
    const ALL: [(&'static str, ModelOutput); 3] = [
        ("logits", ModelOutput::Logits),
        ("probabilities", ModelOutput::Probabilities),
        ("features", ModelOutput::Features),
    ];
}

/// An output as a protocol requests it.
#[derive(Debug)]
pub struct OutputRequest<'a> {
    pub name: &'a str,
    /// Whether it is bytes, if the request says so.
    pub binary: Option<bool>,
    /// The number of classes to answer with instead of a tensor.
    pub classes: Option<usize>,
}

/// An output of the answer.
#[derive(Debug)]
pub struct SelectedOutput {
    name: &'static str,
    tensor: ModelOutput,
    binary: bool,
    classes: Option<usize>,
}

impl SelectedOutput {
    /// The requested outputs, or all that the model has if none is requested. `binary` is the form of outputs that do not
    /// name one.
    pub fn all(requested: &[OutputRequest], binary: bool, model: &ServedModel) -> Result<Vec<Self>, Problem> {
        let has_head = model.card().config.architecture.classes() > 0;
        let available =
            || ModelOutput::ALL.into_iter().filter(move |(_, tensor)| has_head || *tensor == ModelOutput::Features);
        if requested.is_empty() {
            let output = |(name, tensor)| Self { name, tensor, binary, classes: None };
            return Ok(available().map(output).collect());
        }
        if requested.len() > MAX_OUTPUTS {
            return Err(Problem::malformed("More outputs are requested than there are."));
        }
        let output = |OutputRequest { name, binary: form, classes }: &OutputRequest| {
            let Some((name, tensor)) = available().find(|(known, _)| known == name) else {
                let names: Vec<&str> = available().map(|(name, _)| name).collect();
                let detail = format!("There is no output `{}`; there are {}.", shortened(name), names.join(", "));
                return Err(Problem::malformed(detail));
            };
            let classes = classes.filter(|classes| *classes > 0);
            if classes.is_some() && tensor == ModelOutput::Features {
                return Err(Problem::malformed("`classification` has no meaning for features."));
            }
            Ok(Self { name, tensor, binary: form.unwrap_or(binary), classes })
        };
        requested.iter().map(output).collect()
    }

    fn of(&self, model: &ServedModel, answers: &[Answer]) -> OutputTensor {
        let problem_type = model.card().config.problem_type;
        let row = |answer: &Answer| match self.tensor {
            ModelOutput::Logits => answer.logits.clone(),
            ModelOutput::Probabilities => problem_type.probabilities(&answer.logits),
            ModelOutput::Features => answer.embedding.clone(),
        };
        let rows: Vec<Vec<f32>> = answers.iter().map(row).collect();
        let width = rows.first().map_or(0, Vec::len);
        match self.classes {
            None => OutputTensor::new(self.name, [rows.len(), width], OutputData::Floats(rows.concat()), self.binary),
            Some(classes) => {
                let classes = classes.min(width);
                let texts = rows.iter().flat_map(|row| likeliest(row, classes, &model.card().config.labels)).collect();
                OutputTensor::new(self.name, [rows.len(), classes], OutputData::Texts(texts), self.binary)
            }
        }
    }
}

/// `value:index:label` of the largest elements, as Triton's classification extension has them.
fn likeliest(row: &[f32], classes: usize, labels: &[String]) -> Vec<String> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    let text = |class: usize| match labels.get(class) {
        Some(label) => format!("{:.6}:{class}:{label}", row[class]),
        None => format!("{:.6}:{class}", row[class]),
    };
    order.into_iter().take(classes).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_texts() {
        let labels = ["cat".to_string()];
        assert_eq!(likeliest(&[0.25, 0.5, 0.5], 2, &labels), ["0.500000:1", "0.500000:2"]);
        assert_eq!(likeliest(&[1.0], 5, &labels), ["1.000000:0:cat"]);
    }
}
