// Code as a package of Ray: a zip that the cluster unpacks on each machine that needs it, named by its content.
import { createHash } from 'node:crypto'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { buffer } from 'node:stream/consumers'
import { lazy } from '../../../lib/lazy.ts'
import type { RayClient } from './client.ts'

export interface CodePackage {
  name: string
  content: Buffer
}

interface PackedFolder {
  folder: string
  /** Globs of its files. */
  patterns: string[]
  exclude?: string[]
  /** Where they are in the package. */
  to: string
}

/** Packs files of folders: the same bytes for the same files. */
export async function packFolders(folders: PackedFolder[]): Promise<CodePackage> {
  const { ZipFile } = await import('yazl')
  const zip = new ZipFile()
  const hash = createHash('sha256')
  for (const { folder, patterns, exclude = [], to } of folders)
    for (const file of globSync(patterns, { cwd: folder, exclude, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => path.relative(folder, path.join(entry.parentPath, entry.name)))
      .sort()) {
      const content = readFileSync(path.join(folder, file))
      const name = path.posix.join(to, file)
      hash.update(`${name}\0${content.length}\0`).update(content)
      zip.addBuffer(content, name, { mtime: new Date(Date.UTC(2020, 0, 1)), mode: 0o644 })
    }
  zip.end()
  const content = await buffer(zip.outputStream)
  return { name: `_ray_pkg_${hash.digest('hex').slice(0, 32)}.zip`, content }
}

/** Returns a function that brings the code into the cluster, if it is not there, and returns its URI. */
export function createPackageUpload(ray: RayClient, pack: () => Promise<CodePackage>): () => Promise<string> {
  const packed = lazy(pack)
  return async () => {
    const { name, content } = await packed()
    // Ray removes packages that nothing uses.
    if (!(await ray.hasPackage(name))) await ray.uploadPackage(name, content)
    return `gcs://${name}`
  }
}
