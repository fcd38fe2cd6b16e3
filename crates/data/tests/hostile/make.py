"""Makes the hostile files in this folder: small files that claim to be huge, endless or impossible. Needs Pillow.

decoder_panics.jpg is not made here: fuzzing found it."""

import io, os, struct, zlib
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def write(name, data):
    open(os.path.join(HERE, name), "wb").write(data)


def saved(size=(16, 16), mode="RGB", **options):
    out = io.BytesIO()
    Image.effect_noise(size, 60).convert(mode).save(out, **options)
    return out.getvalue()


def chunk(name, body, length=None):
    return struct.pack(">I", len(body) if length is None else length) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width, height, body, colour=2):
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)) + body


END = chunk(b"IEND", b"")
some = chunk(b"IDAT", zlib.compress(bytes(1000)))
write("huge.png", png(50000, 50000, some + END))
write("zero.png", png(0, 7, some + END))
write("overflow.png", png(0xFFFFFFFF, 0xFFFFFFFF, some + END))
write("declared_idat.png", png(8, 8, chunk(b"IDAT", b"abc", 0x7FFFFFFF) + END))
write("declared_text.png", png(8, 8, chunk(b"tEXt", b"abc", 0x7FFFFFF0) + END))
write("profile_bomb.png", png(8, 8, chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(80 << 20), 9)) + some + END))
write("too_much_data.png", png(8, 8, chunk(b"IDAT", zlib.compress(bytes(40 << 20), 9)) + END))
write("broken_palette.png", png(8, 8, chunk(b"PLTE", bytes(7)) + some + END, 3))
write("broken_palette_alpha.png", png(8, 8, chunk(b"PLTE", bytes(7)) + chunk(b"tRNS", bytes(2)) + some + END, 3))
write("long_palette.png", png(8, 8, chunk(b"PLTE", bytes(3 * 300)) + chunk(b"tRNS", bytes(290)) + some + END, 3))
write("no_palette.png", png(8, 8, some + END, 3))


def gif(screen, frame):
    return (b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6)
            + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\2\2\x4c\1\0;")


write("huge.gif", gif((50000, 50000), (50000, 50000)))
write("huge_frame.gif", gif((4, 4), (65535, 65535)))
write("zero.gif", gif((0, 0), (0, 0)))
write("zero_frame.gif", gif((4, 4), (0, 0)))
write("no_frame.gif", b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0x80, 0, 0) + bytes(6) + b";")


def bmp(width, height, bits=24, compression=0, colours=0, offset=54):
    return (b"BM" + struct.pack("<IHHI", 200, 0, 0, offset)
            + struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, 0, 0, 0, colours, 0) + bytes(146))


write("huge.bmp", bmp(50000, 50000))
write("huge_top_down.bmp", bmp(50000, -50000))
write("negative_width.bmp", bmp(-4, 4))
write("least_height.bmp", bmp(4, -(1 << 31)))
write("overflow.bmp", bmp(0x7FFFFFFF, 0x7FFFFFFF, 32))
write("zero.bmp", bmp(0, 0))
write("many_colours.bmp", bmp(4, 4, 8, 0, 0xFFFFFFFF))
write("rle.bmp", bmp(4, 4, 8, 1, 2))
write("bits.bmp", bmp(4, 4, 77))


def tiff(tags, data=b"", next_ifd=0):
    body = struct.pack("<H", len(tags))
    for tag, kind, count, value in sorted(tags):
        body += struct.pack("<HHII", tag, kind, count, value)
    return b"II*\0" + struct.pack("<I", 8) + body + struct.pack("<I", next_ifd) + data


def plain(width, height, **more):
    tags = {256: (4, 1, width), 257: (4, 1, height), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1),
            273: (4, 1, 8), 277: (3, 1, 1), 278: (4, 1, height), 279: (4, 1, 64)}
    for name, value in more.items():
        if value is None:
            del tags[int(name[1:])]
        else:
            tags[int(name[1:])] = value
    return [(tag, *rest) for tag, rest in tags.items()]


write("huge.tiff", tiff(plain(50000, 50000), bytes(64)))
write("overflow.tiff", tiff(plain(0xFFFFFFFF, 0xFFFFFFFF), bytes(64)))
write("zero.tiff", tiff(plain(0, 0), bytes(64)))
write("cyclic.tiff", tiff(plain(8, 8), bytes(64), next_ifd=8))
write("cyclic_start.tiff", b"II*\0" + struct.pack("<I", 0) + bytes(32))
write("huge_strip.tiff", tiff(plain(8, 8, _279=(4, 1, 0xFFFFFFFF)), bytes(64)))
write("huge_strip_list.tiff", tiff(plain(8, 8, _273=(4, 0x3FFFFFFF, 8), _279=(4, 0x3FFFFFFF, 8)), bytes(64)))
write("huge_rows.tiff", tiff(plain(8, 8, _278=(4, 1, 0xFFFFFFFF)), bytes(64)))
write("zero_rows.tiff", tiff(plain(8, 8, _278=(4, 1, 0)), bytes(64)))
tiles = dict(_273=None, _278=None, _279=None, _324=(4, 1, 8), _325=(4, 1, 64))
write("huge_tile.tiff", tiff(plain(8, 8, _322=(4, 1, 0xFFFFFFF0), _323=(4, 1, 0xFFFFFFF0), **tiles), bytes(64)))
write("large_tile.tiff", tiff(plain(8, 8, _322=(4, 1, 60000), _323=(4, 1, 60000), **tiles), bytes(64)))
write("zero_tile.tiff", tiff(plain(8, 8, _322=(4, 1, 0), _323=(4, 1, 0), **tiles), bytes(64)))
write("many_samples.tiff", tiff(plain(8, 8, _277=(3, 1, 65535)), bytes(64)))
write("deep_samples.tiff", tiff(plain(8, 8, _258=(3, 1, 65535)), bytes(64)))
write("palette_without_map.tiff", tiff(plain(8, 8, _262=(3, 1, 3)), bytes(64)))
write("palette_short_map.tiff", tiff(plain(8, 8, _262=(3, 1, 3), _320=(3, 2, 5)), bytes(64)))
write("palette_huge_map.tiff", tiff(plain(8, 8, _262=(3, 1, 3), _320=(3, 0x7FFFFFFF, 8)), bytes(64)))
write("many_entries.tiff", b"II*\0" + struct.pack("<IH", 8, 65535) + bytes(64))
write("big.tiff", b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, 0xFFFFFFFFFFFFFFFF) + bytes(64))


def sof(data, width, height):
    data = bytearray(data)
    at = next(i for i in range(2, len(data)) if data[i] == 0xFF and data[i + 1] in (0xC0, 0xC2))
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


jpeg = saved(format="JPEG")
write("huge.jpg", sof(jpeg, 50000, 50000))
write("huge_progressive.jpg", sof(saved(format="JPEG", progressive=True), 50000, 50000))
write("huge_cmyk.jpg", sof(saved(mode="CMYK", format="JPEG"), 50000, 50000))
write("zero.jpg", sof(jpeg, 0, 0))
write("later_height.jpg", sof(jpeg, 16, 0))
at = jpeg.index(b"\xff\xda")
write("second_frame_header.jpg", jpeg[:-2] + jpeg[jpeg.index(b"\xff\xc0") : at] + jpeg[at:])
grown = sof(saved(format="JPEG", progressive=True), 50000, 50000)
small = saved(format="JPEG", progressive=True)
head = grown.index(b"\xff\xc2")
write("second_frame_header_larger.jpg", small[:-2] + grown[head:])
write("start_only.jpg", b"\xff\xd8\xff")
write("end_only.jpg", b"\xff\xd8\xff\xd9")
write("cut.jpg", jpeg[: len(jpeg) * 2 // 3])
write("without_end.jpg", jpeg[:-2])
write("inner.tiff", tiff(plain(16, 16, _259=(3, 1, 7), _262=(3, 1, 6), _277=(3, 1, 3), _273=(4, 1, 122),
                               _279=(4, 1, len(jpeg))), sof(jpeg, 60000, 60000)))


def riff(*chunks):
    body = b"".join(name + struct.pack("<I", length if length is not None else len(data)) + data + b"\0" * (len(data) % 2)
                    for name, data, length in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def vp8x(width, height, flags=0):
    return b"VP8X", struct.pack("<I", flags) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3], None


lossy = saved(format="WEBP")[20:]
lossless = saved(format="WEBP", lossless=True)[20:]
huge_lossy = lossy[:6] + struct.pack("<HH", 16383, 16383) + lossy[10:]
huge_lossless = lossless[:1] + struct.pack("<I", 0x0FFFFFFF) + lossless[5:]
write("huge_lossy.webp", riff((b"VP8 ", huge_lossy, None)))
write("huge_lossless.webp", riff((b"VP8L", huge_lossless, None)))
write("huge_canvas.webp", riff(vp8x(50000, 50000), (b"VP8 ", lossy, None)))
write("huge_inside.webp", riff(vp8x(16, 16), (b"VP8 ", huge_lossy, None)))
frame = struct.pack("<I", 0)[:3] * 2 + struct.pack("<I", 15)[:3] * 2 + struct.pack("<I", 100)[:3] + b"\0"
write("huge_frame.webp", riff(vp8x(16, 16, 2), (b"ANIM", bytes(6), None),
                              (b"ANMF", frame + b"VP8 " + struct.pack("<I", len(huge_lossy)) + huge_lossy, None)))
write("no_frame.webp", riff(vp8x(16, 16, 2), (b"ANIM", bytes(6), None)))
write("declared_exif.webp", riff(vp8x(16, 16, 8), (b"VP8 ", lossy, None), (b"EXIF", b"abc", 0xFFFFFFF0)))
write("declared_image.webp", riff((b"VP8 ", lossy, 0xFFFFFFF0)))
write("alpha_missing.webp", riff(vp8x(16, 16, 16), (b"VP8 ", lossy, None)))

write("notes.jpg", b"These are my notes about the trip, not a photograph of it.\n")
write("empty.png", b"")
write("page.webp", b"<!doctype html><title>404</title>")
