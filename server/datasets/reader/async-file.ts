import { open } from 'node:fs/promises'

/** A file as hyparquet reads it: slices on demand. Asking for more than there is gives an error instead of a huge buffer. */
export async function openAsBuffer(path: string) {
  const handle = await open(path, 'r')
  const { size } = await handle.stat()
  return {
    byteLength: size,
    async slice(start: number, end = size): Promise<ArrayBuffer> {
      if (!(start >= 0 && end <= size && start <= end)) throw new Error('it points outside of itself')
      const bytes = new ArrayBuffer(end - start)
      await handle.read(new Uint8Array(bytes), 0, end - start, start)
      return bytes
    },
    close: () => handle.close(),
  }
}
