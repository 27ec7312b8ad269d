// Pictures for the docs, small enough to be kept in the repository.
import type { Page } from 'playwright-core'

/** A PNG as WebP of at most `width` pixels, drawn by the browser itself. */
export async function toWebp(page: Page, png: Buffer, width: number): Promise<Buffer> {
  const base64 = await page.evaluate(
    async ([source, width]) => {
      const bytes = Uint8Array.from(atob(source), (character) => character.charCodeAt(0))
      const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }))
      const scale = Math.min(1, width / image.width)
      const canvas = new OffscreenCanvas(Math.round(image.width * scale), Math.round(image.height * scale))
      const context = canvas.getContext('2d')!
      context.imageSmoothingQuality = 'high'
      context.drawImage(image, 0, 0, canvas.width, canvas.height)
      const blob = await canvas.convertToBlob({ type: 'image/webp', quality: 0.8 })
      let text = ''
      for (const byte of new Uint8Array(await blob.arrayBuffer())) text += String.fromCharCode(byte)
      return btoa(text)
    },
    [png.toString('base64'), width] as const,
  )
  return Buffer.from(base64, 'base64')
}
