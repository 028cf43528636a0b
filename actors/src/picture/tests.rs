//! Files as they come, whole and hostile.

use image::codecs::gif::GifEncoder;
use image::codecs::png::PngEncoder;
use image::{
    DynamicImage, ExtendedColorType, Frame, ImageBuffer, ImageEncoder, ImageFormat, Rgb, RgbImage, Rgba,
    RgbaImage,
};
use proptest::prelude::*;

use super::*;

const BOUNDS: PictureBounds = PictureBounds { bytes: 1 << 20, pixels: 1 << 16 };

fn read(bytes: &[u8]) -> Result<Picture, PictureError> {
    Picture::read("messages[0].content[1]", bytes, Detail::High, BOUNDS)
}

fn pixels(bytes: &[u8]) -> Result<Vec<u8>, PictureError> {
    let picture = read(bytes)?;
    let (width, height) = picture.size();
    picture.pixels(width, height)
}

/// Another colour at each place.
fn colours(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([(x * 17) as u8, (y * 29) as u8, (x * y) as u8]))
}

fn file(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).expect("it is encoded");
    bytes.into_inner()
}

/// A baseline JPEG of one block of one colour, four components as they are stored, marked as Adobe marks CMYK.
fn cmyk(stored: [u8; 4]) -> Vec<u8> {
    let mut out = vec![0xff, 0xd8];
    let mut segment = |marker: u8, body: &[u8]| {
        out.extend([0xff, marker]);
        out.extend((body.len() as u16 + 2).to_be_bytes());
        out.extend(body);
    };
    segment(0xee, b"Adobe\x00\x64\x00\x00\x00\x00\x00");
    segment(0xdb, &[&[0][..], &[8; 64]].concat());
    let parts: Vec<u8> = (1..=4).flat_map(|id| [id, 0x11, 0]).collect();
    segment(0xc0, &[&[8, 0, 8, 0, 8, 4][..], &parts].concat());
    // Nine codes of four bits for how many bits a value has; one code of one bit for "nothing more in this block".
    segment(0xc4, &[&[0, 0, 0, 0, 9][..], &[0; 12], &[0, 1, 2, 3, 4, 5, 6, 7, 8]].concat());
    segment(0xc4, &[&[0x10, 1][..], &[0; 15], &[0]].concat());
    segment(0xda, &[4, 1, 0, 2, 0, 3, 0, 4, 0, 0, 63, 0]);
    let (mut bits, mut count) = (0_u64, 0);
    for value in stored.map(|value| i32::from(value) - 128) {
        let size = 32 - value.unsigned_abs().leading_zeros();
        let coded = if value < 0 { value + (1 << size) - 1 } else { value };
        for (more, length) in [(size as u64, 4), (coded as u64, size), (0, 1)] {
            (bits, count) = (bits << length | more, count + length);
        }
    }
    let padding = (8 - count % 8) % 8;
    bits = bits << padding | ((1 << padding) - 1);
    for byte in bits.to_be_bytes().into_iter().skip(8 - (count + padding) as usize / 8) {
        out.push(byte);
        out.extend((byte == 0xff).then_some(0));
    }
    out.extend([0xff, 0xd9]);
    out
}

/// A JPEG that says in its EXIF part how it is to be turned.
fn turned(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
    let mut out = vec![0xff, 0xd8, 0xff, 0xe1];
    out.extend((exif.len() as u16 + 2).to_be_bytes());
    out.extend(exif);
    out.extend(&jpeg[2..]);
    out
}

/// A GIF that says it has this size.
fn gif_of(width: u16, height: u16) -> Vec<u8> {
    let mut gif = file(colours(4, 4), ImageFormat::Gif);
    gif[6..8].copy_from_slice(&width.to_le_bytes());
    gif[8..10].copy_from_slice(&height.to_le_bytes());
    gif
}

#[test]
fn files_without_losses_give_their_pixels() {
    let image = colours(23, 9);
    for format in [ImageFormat::Png, ImageFormat::WebP] {
        let bytes = file(image.clone(), format);
        assert_eq!(read(&bytes).unwrap().size(), (23, 9));
        assert_eq!(pixels(&bytes).unwrap(), image.as_raw().clone(), "{format:?}");
    }
    let near = |bytes: Vec<u8>| {
        let seen = pixels(&bytes).unwrap();
        seen.iter().zip(image.as_raw()).map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>() / 621
    };
    assert!(near(file(image.clone(), ImageFormat::Jpeg)) < 12);
    assert!(near(file(image.clone(), ImageFormat::Gif)) < 12);
}

#[test]
fn transparent_is_white_and_sixteen_bits_are_eight() {
    let clear = RgbaImage::from_pixel(2, 2, Rgba([9, 9, 9, 0]));
    assert_eq!(pixels(&file(clear, ImageFormat::Png)).unwrap(), [255; 12]);
    let half = RgbaImage::from_pixel(1, 1, Rgba([0, 100, 200, 128]));
    assert_eq!(pixels(&file(half, ImageFormat::Png)).unwrap(), [127, 177, 227]);
    let deep = ImageBuffer::from_pixel(3, 1, Rgb([0_u16, 0x8080, 0xffff]));
    assert_eq!(pixels(&file(deep, ImageFormat::Png)).unwrap(), [0, 128, 255].repeat(3));
    let mut grey = Vec::new();
    PngEncoder::new(&mut grey).write_image(&[7, 8], 2, 1, ExtendedColorType::L8).unwrap();
    assert_eq!(pixels(&grey).unwrap(), [7, 7, 7, 8, 8, 8]);
}

#[test]
fn printers_colours_become_those_of_screens() {
    for (stored, expected) in [
        ([255, 255, 255, 255], [255, 255, 255]),
        ([0, 255, 255, 255], [0, 255, 255]),
        ([255, 255, 0, 255], [255, 255, 0]),
        ([255, 255, 255, 0], [0, 0, 0]),
    ] {
        let seen = pixels(&cmyk(stored)).unwrap();
        let near = seen.iter().zip(expected.iter().cycle()).all(|(a, b)| a.abs_diff(*b) < 8);
        assert!(near && seen.len() == 192, "{stored:?}: {:?}", &seen[..3]);
    }
}

#[test]
fn the_first_image_of_a_moving_one_counts() {
    let mut gif = Vec::new();
    let mut encoder = GifEncoder::new(&mut gif);
    for value in [0, 255] {
        encoder
            .encode_frame(Frame::new(RgbaImage::from_pixel(4, 4, Rgba([value, value, value, 255]))))
            .unwrap();
    }
    drop(encoder);
    assert_eq!(pixels(&gif).unwrap(), [0; 48]);
}

#[test]
fn images_are_turned_upright() {
    let mut image = RgbImage::new(16, 8);
    image.enumerate_pixels_mut().filter(|(x, _, _)| *x < 8).for_each(|(_, _, pixel)| *pixel = Rgb([255; 3]));
    let picture = read(&turned(&file(image, ImageFormat::Jpeg), 6)).unwrap();
    assert_eq!(picture.size(), (8, 16));
    // What lay at the left is now at the top.
    let seen = picture.pixels(8, 16).unwrap();
    assert!(seen[..8 * 3 * 7].iter().all(|value| *value > 200));
    assert!(seen[8 * 3 * 9..].iter().all(|value| *value < 50));
}

#[test]
fn what_is_too_large_or_empty_is_refused_by_its_header() {
    assert_eq!(read(&[]).unwrap_err(), PictureError::Empty);
    assert_eq!(read(b"hello, world").unwrap_err(), PictureError::Format);
    assert_eq!(read(b"BM\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").unwrap_err(), PictureError::Format);
    let most = BOUNDS.pixels;
    assert_eq!(
        read(&gif_of(65_535, 65_535)).unwrap_err(),
        PictureError::Size { width: 65_535, height: 65_535, most }
    );
    assert_eq!(read(&gif_of(0, 7)).unwrap_err(), PictureError::Size { width: 0, height: 7, most });
    let small = PictureBounds { bytes: 10, ..BOUNDS };
    let error = Picture::read("x", gif_of(4, 4), Detail::High, small).unwrap_err();
    assert!(matches!(error, PictureError::Bytes { most: 10, .. }));
    assert!(error.to_string().contains("but only 10 are taken"), "{error}");
}

#[test]
fn what_breaks_off_is_broken() {
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif] {
        let whole = file(colours(64, 64), format);
        for cut in [whole.len() / 2, whole.len() - whole.len() / 8] {
            assert!(matches!(pixels(&whole[..cut]), Err(PictureError::Broken(_))), "{format:?} at {cut}");
        }
    }
}

#[test]
fn low_detail_is_another_picture_and_smaller() {
    let bytes = file(RgbImage::new(1200, 40), ImageFormat::Png);
    let [high, low] =
        [Detail::High, Detail::Low].map(|detail| Picture::read("x", bytes.clone(), detail, BOUNDS).unwrap());
    assert_eq!((high.size(), low.size()), ((1200, 40), (512, 17)));
    assert_ne!(high.digest(), low.digest());
    assert_eq!(low.pixels(512, 17).unwrap().len(), 512 * 17 * 3);
    assert_eq!(fitted((3, 500_000), 512), (1, 512));
}

/// `resized.png` is `whole.png` as the processor of Qwen3-VL resizes it (bicubic, antialiased).
#[test]
fn an_image_is_resized_as_models_were_trained_to_see_it() {
    let whole = read(include_bytes!("../../tests/images/whole.png")).unwrap();
    assert_eq!(whole.size(), (100, 75));
    let ours = whole.pixels(96, 64).unwrap();
    let theirs = pixels(include_bytes!("../../tests/images/resized.png")).unwrap();
    let most = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(most <= Some(1), "{most:?} of 255 away");
}

#[test]
fn a_flat_image_stays_flat_in_any_size() {
    let bytes = file(RgbImage::from_pixel(37, 11, Rgb([1, 128, 254])), ImageFormat::Png);
    for (width, height) in [(1, 1), (100, 3), (37, 11), (14, 140)] {
        let seen = read(&bytes).unwrap().pixels(width, height).unwrap();
        assert_eq!(seen, [1, 128, 254].repeat((width * height) as usize));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_damage_takes_anybody_along(
        format in prop::sample::select(vec![
            ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif,
        ]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = file(colours(31, 17), format);
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.truncate(bytes.len().min(40 + cut.index(2 * bytes.len())));
        if let Ok(picture) = read(&bytes) {
            let (width, height) = picture.size();
            prop_assert!(u64::from(width) * u64::from(height) <= BOUNDS.pixels);
            if let Ok(seen) = picture.pixels(20, 10) {
                prop_assert_eq!(seen.len(), 600);
            }
        }
    }
}
