// The trainer's code as a package of Ray: each run gets the version of the service that started it.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { buffer } from 'node:stream/consumers'
import { root } from '../../../lib/root.ts'
import type { RayClient } from './client.ts'

interface CodePackage {
  name: string
  content: Buffer
}

/** A zip of `trainer/` and `converters/`, the same bytes for the same files. Its name has their hash. */
export async function packCode(converters: string): Promise<CodePackage> {
  const { ZipFile } = await import('yazl')
  const zip = new ZipFile()
  const hash = createHash('sha256')
  const add = (folder: string, pattern: string, exclude: string[], to: string) => {
    for (const file of globSync(pattern, { cwd: folder, exclude }).sort()) {
      const content = readFileSync(path.join(folder, file))
      hash.update(`${to}/${file}\0${content.length}\0`).update(content)
      zip.addBuffer(content, `${to}/${file}`, { mtime: new Date(Date.UTC(2020, 0, 1)), mode: 0o644 })
    }
  }
  add(path.join(root, 'trainer'), '**/*.py', ['tests/**'], 'trainer')
  add(converters, '**/*.py', [], 'converters')
  zip.end()
  const content = await buffer(zip.outputStream)
  return { name: `_ray_pkg_${hash.digest('hex').slice(0, 32)}.zip`, content }
}

/** Returns a function that brings the code into the cluster, if it is not there, and returns its URI. */
export function createCodePackage(ray: RayClient, converters: string): () => Promise<string> {
  let packed: Promise<CodePackage> | undefined
  return async () => {
    packed ??= packCode(converters)
    const { name, content } = await packed
    // Ray removes packages that no job uses.
    if (!(await ray.hasPackage(name))) await ray.uploadPackage(name, content)
    return `gcs://${name}`
  }
}
