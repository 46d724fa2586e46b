//! Text in HTML.

use std::fmt::{self, Display, Formatter, Write};

/// Text, escaped for HTML: for an element's content, and for an attribute in double quotes.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_an_attribute_or_begins_an_element() {
        let escaped = Escaped("a <b> & \"c\"").to_string();
        assert_eq!(escaped, "a &lt;b&gt; &amp; &quot;c&quot;");
    }
}
