// How large a picture is, so that the page does not jump when it arrives.
import { readFileSync } from 'node:fs'

/** Pixels of a PNG or WebP file, or of an SVG file that begins with its width and height. Throws for other files. */
export function imageSize(file: string): { width: number; height: number } {
  const bytes = readFileSync(file)
  const text = (from: number, length: number) => bytes.toString('latin1', from, from + length)
  if (text(1, 3) === 'PNG') return { width: bytes.readUInt32BE(16), height: bytes.readUInt32BE(20) }
  if (text(0, 4) === 'RIFF' && text(8, 4) === 'WEBP') {
    switch (text(12, 4)) {
      case 'VP8 ':
        return { width: bytes.readUInt16LE(26) & 0x3fff, height: bytes.readUInt16LE(28) & 0x3fff }
      case 'VP8L': {
        const packed = bytes.readUInt32LE(21)
        return { width: (packed & 0x3fff) + 1, height: ((packed >>> 14) & 0x3fff) + 1 }
      }
      case 'VP8X':
        return { width: bytes.readUIntLE(24, 3) + 1, height: bytes.readUIntLE(27, 3) + 1 }
    }
  }
  const svg = /^<svg [^>]*\bwidth="(\d+)" height="(\d+)"/.exec(text(0, 500))
  if (svg) return { width: Number(svg[1]), height: Number(svg[2]) }
  throw new Error(`${file} is neither PNG nor WebP, nor SVG with a width and a height.`)
}
