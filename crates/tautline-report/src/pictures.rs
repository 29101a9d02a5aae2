//! Pictures of grey pixels as part of a page.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use maud::html;

use crate::page::Block;

/// A picture of grey pixels.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Line of text below it.
    pub caption: String,
    /// Pixels of a row.
    pub width: u32,
    /// One byte for each pixel from black to white, row after row from the top.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// The picture as the address of an image; `None` if its rows are not whole.
    fn address(&self) -> Option<String> {
        let height = self.pixels.len() as u32 / self.width.max(1);
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, height);
        encoder.set_color(png::ColorType::Grayscale);
        let mut writer = encoder.write_header().ok()?;
        writer.write_image_data(&self.pixels).ok()?;
        writer.finish().ok()?;
        Some(format!("data:image/png;base64,{}", BASE64.encode(file)))
    }
}

/// Pictures beside each other, as many as the screen has room for.
pub fn pictures(all: &[Picture]) -> Block {
    Block(html! {
        div.pictures {
            @for picture in all {
                @if let Some(address) = picture.address() {
                    figure {
                        img src=(address) alt=(picture.caption);
                        figcaption { (picture.caption) }
                    }
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "<script>alert('1')</script>\"&";

    #[test]
    fn pictures_are_part_of_the_page() {
        let picture = |pixels: usize| Picture {
            caption: HOSTILE.to_owned(),
            width: 4,
            pixels: vec![7; pixels],
        };
        let Block(markup) = pictures(&[picture(12), picture(11)]);
        let html = markup.into_string();
        let (_, rest) = html.split_once("src=\"data:image/png;base64,").unwrap();
        let (address, rest) = rest.split_once('"').unwrap();
        let file = BASE64.decode(address).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file))
            .read_info()
            .unwrap();
        let mut pixels = [0; 12];
        reader.next_frame(&mut pixels).unwrap();
        assert_eq!(pixels, [7; 12]);
        assert!(
            !html.contains("<script") && !rest.contains("<img"),
            "cut off"
        );
    }
}
