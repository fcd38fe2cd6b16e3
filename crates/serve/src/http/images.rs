//! The images and options of a request: an encoded image as the body, a form, or a JSON object.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::App;
use super::body::{HeldShare, receive};
use super::deadline::deadline;
use super::fields::Fields;
use super::problem::{Problem, ProblemKind};
use super::urls;

/// Names of form fields and JSON members that hold images.
const IMAGE_NAMES: [&str; 7] = ["image", "images", "images[]", "input", "file", "files", "files[]"];
/// Form fields that are not images.
const MAX_FIELDS: usize = 32;
/// Before larger bodies are read, the queue must have room. Smaller ones are read first: that costs less than the new
/// connection that an unread body leads to.
const CHECKED_FIRST: usize = 1 << 20;

/// An image of a request.
#[derive(Debug, PartialEq)]
pub enum ImageSource {
    /// The encoded image.
    Bytes(Bytes),
    /// Where it can be fetched.
    Url(String),
}

/// Images as a request gave them; an error concerns one image.
pub type Sources = Vec<Result<ImageSource, Problem>>;

/// A request about images.
pub struct ImageRequest {
    pub headers: HeaderMap,
    pub deadline: Instant,
    pub fields: Fields,
    /// Encoded images, or why there is none.
    pub images: Vec<Result<Bytes, Problem>>,
    /// The shares of memory for the body, of which the images may be parts, and for fetched images.
    _held: Vec<HeldShare>,
}

impl ImageRequest {
    /// Reads a request that can only be a JSON object.
    pub async fn read_json(app: &App, request: Request, known: &[&str]) -> Result<Self, Problem> {
        match BodyForm::of(request.headers()) {
            Ok(BodyForm::Json) => Self::read(app, request, known).await,
            _ => {
                let detail = "`Content-Type` should be application/json.";
                Err(Problem::new(ProblemKind::UnsupportedMediaType, detail))
            }
        }
    }

    /// Reads a request. `known` lists the options of the route; `model` is always one.
    pub async fn read(app: &App, request: Request, known: &[&str]) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let headers = parts.headers;
        let deadline = deadline(&headers, app.options.timeout)?;
        let mut fields = Fields::from_query(parts.uri.query().unwrap_or_default())?;
        let form = BodyForm::of(&headers)?;
        let claimed = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if claimed.is_some_and(|length| (CHECKED_FIRST..=app.options.max_body_bytes).contains(&length)) {
            app.engine.model(fields.text("model")?)?.has_room(1)?;
        }
        let (bytes, held) = receive(&app.body_limits, &headers, body, deadline).await?;
        if bytes.is_empty() {
            return Err(Problem::malformed("The body is empty; it should be an image."));
        }
        let most = app.options.max_images;
        let (sources, given) = match form {
            BodyForm::Image => (vec![Ok(ImageSource::Bytes(bytes))], Fields::default()),
            BodyForm::Multipart(boundary) => multipart(bytes, boundary, most).await?,
            BodyForm::Json => app.parse(bytes.len(), move || json(&bytes, most)).await?,
        };
        if sources.is_empty() {
            return Err(Problem::malformed("The request has no image."));
        }
        fields.replace_by(given);
        fields.only(&[&["model"], known].concat())?;
        let (images, mut shares) = urls::fetch_all(app, sources, deadline).await;
        shares.push(held);
        Ok(Self { headers, deadline, fields, images, _held: shares })
    }
}

/// How a body holds its images.
#[derive(Debug, PartialEq)]
enum BodyForm {
    Image,
    /// With the boundary of the parts.
    Multipart(String),
    Json,
}

impl BodyForm {
    fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(Self::Image) };
        let text = value.to_str().unwrap_or_default();
        let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/json" => Ok(Self::Json),
            "application/octet-stream" => Ok(Self::Image),
            "multipart/form-data" => match multer::parse_boundary(text) {
                Ok(boundary) => Ok(Self::Multipart(boundary)),
                Err(_) => Err(Problem::malformed("The header `Content-Type` names no boundary of the parts.")),
            },
            _ if kind.starts_with("image/") => Ok(Self::Image),
            _ => {
                let detail = "`Content-Type` should be image/jpeg (or the image's own type), multipart/form-data or \
                              application/json.";
                Err(Problem::new(ProblemKind::UnsupportedMediaType, detail))
            }
        }
    }
}

/// Parts with a file name or with a name of [`IMAGE_NAMES`] are images, the others are options.
pub async fn multipart(body: Bytes, boundary: String, most: usize) -> Result<(Sources, Fields), Problem> {
    let malformed = |error: multer::Error| Problem::malformed(format!("The form is malformed: {error}."));
    let stream = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(body)]);
    let mut parts = multer::Multipart::new(stream, boundary);
    let (mut sources, mut fields, mut count) = (Vec::new(), Fields::default(), 0);
    while let Some(part) = parts.next_field().await.map_err(malformed)? {
        let name = part.name().unwrap_or_default().to_string();
        if part.file_name().is_some() || IMAGE_NAMES.contains(&name.as_str()) {
            if sources.len() == most {
                return Err(Problem::too_many_images(most));
            }
            sources.push(Ok(ImageSource::Bytes(part.bytes().await.map_err(malformed)?)));
            continue;
        }
        count += 1;
        if count > MAX_FIELDS {
            return Err(Problem::malformed(format!("The form has more than {MAX_FIELDS} fields that are not images.")));
        }
        let value = part.bytes().await.map_err(malformed)?;
        let value = std::str::from_utf8(&value).map_err(|_| Problem::malformed("A field of the form is not text."))?;
        fields.add_text(&name, value)?;
    }
    Ok((sources, fields))
}

/// A JSON object whose members are images and options.
pub fn json(body: &[u8], most: usize) -> Result<(Sources, Fields), Problem> {
    let mut parser = serde_json::Deserializer::from_slice(body);
    let mut refused = None;
    let seed = ObjectSeed { most, refused: &mut refused };
    match seed.deserialize(&mut parser).and_then(|found| parser.end().map(|()| found)) {
        Ok((texts, fields)) => Ok((texts.iter().map(|text| source(text)).collect(), fields)),
        Err(error) => Err(refused.unwrap_or_else(|| Problem::malformed(format!("The JSON is malformed: {error}.")))),
    }
}

/// An image as text: a data URI, base64, or a URL.
pub fn source(text: &str) -> Result<ImageSource, Problem> {
    let begins = |start: &str| text.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start));
    if begins("http://") || begins("https://") {
        return Ok(ImageSource::Url(text.into()));
    }
    let encoded = match begins("data:") {
        false => text,
        true => match text.split_once(',') {
            Some((head, data)) if head.to_ascii_lowercase().ends_with(";base64") => data,
            _ => return Err(Problem::image("A data URI should be `data:image/…;base64,…`.")),
        },
    };
    if encoded.is_empty() {
        return Err(Problem::image("The image is empty."));
    }
    decode_base64(encoded).map(|bytes| ImageSource::Bytes(bytes.into()))
}

/// Both alphabets, with or without padding; line breaks are skipped, as encoders for mail insert them.
fn decode_base64(text: &str) -> Result<Vec<u8>, Problem> {
    const LENIENT: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const PLAIN: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
    const URL: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);
    let text: Cow<str> = match text.contains(['\n', '\r']) {
        true => text.replace(['\n', '\r'], "").into(),
        false => text.into(),
    };
    let engine = if text.contains(['-', '_']) { &URL } else { &PLAIN };
    engine.decode(&*text).map_err(|error| Problem::image(format!("The image is not valid base64: {error}.")))
}

struct ObjectSeed<'a> {
    most: usize,
    /// An error that is more than a text.
    refused: &'a mut Option<Problem>,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = (Vec<Cow<'de, str>>, Fields);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = (Vec<Cow<'de, str>>, Fields);

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with `image`, `images` or `input`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let (mut images, mut fields) = (Vec::new(), Fields::default());
        while let Some(name) = members.next_key::<Cow<str>>()? {
            if IMAGE_NAMES.contains(&&*name) {
                let (most, refused) = (self.most, &mut *self.refused);
                members.next_value_seed(ImageTexts { found: &mut images, most, refused, in_list: false })?;
            } else if let Err(problem) = fields.add_json(name.into_owned(), members.next_value()?) {
                *self.refused = Some(problem);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok((images, fields))
    }
}

/// A text or a list of texts.
struct ImageTexts<'a, 'de> {
    found: &'a mut Vec<Cow<'de, str>>,
    most: usize,
    refused: &'a mut Option<Problem>,
    in_list: bool,
}

impl<'de> ImageTexts<'_, 'de> {
    fn push<E: Error>(self, text: Cow<'de, str>) -> Result<(), E> {
        if self.found.len() == self.most {
            *self.refused = Some(Problem::too_many_images(self.most));
            return Err(E::custom("refused"));
        }
        self.found.push(text);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ImageTexts<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ImageTexts<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an image as base64 or as a data URI, or a list of them")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        self.push(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.push(Cow::Owned(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.in_list {
            return Err(A::Error::custom("a list of images should not hold lists"));
        }
        let Self { found, most, refused, .. } = self;
        while list.next_element_seed(ImageTexts { found, most, refused, in_list: true })?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(sources: Sources) -> Vec<Vec<u8>> {
        let bytes = |source| match source {
            Ok(ImageSource::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        };
        sources.into_iter().map(bytes).collect()
    }

    #[test]
    fn json_holds_images_in_several_forms() {
        let body =
            br#"{"image": "aGk=", "top": 3, "images": ["data:image/png;base64,aGk", "_-\nA="], "class": ["a", 2]}"#;
        let (sources, fields) = json(body, 3).unwrap();
        assert_eq!(bytes(sources), [b"hi".to_vec(), b"hi".to_vec(), vec![255, 224]]);
        assert_eq!(fields.integer("top", 1..=9).unwrap(), Some(3));
        let error = json(body, 2).unwrap_err();
        assert_eq!((error.kind, error.limit), (ProblemKind::TooManyImages, Some(2)));
        let (sources, _) = json(br#"{"input": ["?", "https://example.org/a.png"]}"#, 3).unwrap();
        assert_eq!(sources[0].as_ref().unwrap_err().kind, ProblemKind::InvalidImage);
        assert!(matches!(sources[1], Ok(ImageSource::Url(_))));
    }

    #[test]
    fn malformed_json_is_refused() {
        let deep = "[".repeat(100_000);
        for body in ["", "[]", "3", "{", "{\"image\": 3}", "{\"image\": [[\"aGk=\"]]}", "{\"x\": {}}", "{} {}", &deep] {
            assert_eq!(json(body.as_bytes(), 3).unwrap_err().kind, ProblemKind::Malformed, "{body:.20}");
        }
        let deep = format!("{{\"x\": {deep}");
        assert!(json(deep.as_bytes(), 3).is_err());
    }

    #[tokio::test]
    async fn forms_hold_images_and_options() {
        let part = |head: &str, body: &str| format!("--X\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n");
        let form = [
            part("name=\"images\"", "one"),
            part("name=\"other\"; filename=\"a.jpg\"", "two"),
            part("name=\"top\"", "3"),
        ];
        let form = |extra: &str| Bytes::from(format!("{}{extra}--X--\r\n", form.concat()));
        let (sources, fields) = multipart(form(""), "X".into(), 2).await.unwrap();
        assert_eq!(bytes(sources), [b"one".to_vec(), b"two".to_vec()]);
        assert_eq!(fields.integer("top", 1..=9).unwrap(), Some(3));
        assert_eq!(multipart(form(""), "X".into(), 1).await.unwrap_err().kind, ProblemKind::TooManyImages);
        let many = part("name=\"top\"", "3").repeat(40);
        assert_eq!(multipart(form(&many), "X".into(), 2).await.unwrap_err().kind, ProblemKind::Malformed);
        assert_eq!(multipart("junk".into(), "X".into(), 2).await.unwrap_err().kind, ProblemKind::Malformed);
    }
}
