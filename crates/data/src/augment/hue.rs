//! Hue rotation: to HSV in bytes, a shift with wrap-around, and back. The bytes are those of torchvision's `adjust_hue`
//! on Pillow images, including Pillow's mixture of f32 and f64.

use crate::image::Image;

/// Rotates the hue by `factor` of the full circle, -0.5 to 0.5.
pub fn hue(image: &mut Image, factor: f64) {
    // Truncated, then modulo 256.
    let shift = (factor * 255.0) as i32 as u8;
    for pixel in image.pixels_mut().as_chunks_mut::<3>().0 {
        let [hue, saturation, value] = to_hsv(*pixel);
        *pixel = from_hsv([hue.wrapping_add(shift), saturation, value]);
    }
}

fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let greatest = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    if greatest == least {
        return [0, 0, greatest];
    }
    let spread = f32::from(greatest - least);
    let saturation = spread / f32::from(greatest);
    let below = |channel: u8| f32::from(greatest - channel) / spread;
    let sixths = if red == greatest {
        below(blue) - below(green)
    } else if green == greatest {
        (2.0 + f64::from(below(red)) - f64::from(below(blue))) as f32
    } else {
        (4.0 + f64::from(below(green)) - f64::from(below(red))) as f32
    };
    let turned = f64::from(sixths) / 6.0 + 1.0;
    let hue = (if turned >= 1.0 { turned - 1.0 } else { turned }) as f32;
    [(f64::from(hue) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, greatest]
}

fn from_hsv([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let sector = sixths.floor();
    let within = (sixths - sector) as f32;
    let saturation = (f64::from(saturation) / 255.0) as f32;
    let scaled = |part: f64| (f64::from(value) * (1.0 - part)).round() as u8;
    let low = scaled(f64::from(saturation));
    let falling = || scaled(f64::from(saturation * within));
    let rising = || scaled(f64::from(saturation) * (1.0 - f64::from(within)));
    match sector as u8 % 6 {
        0 => [value, rising(), low],
        1 => [falling(), value, low],
        2 => [low, value, rising()],
        3 => [low, falling(), value],
        4 => [rising(), low, value],
        _ => [value, low, falling()],
    }
}
