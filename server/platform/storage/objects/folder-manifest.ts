// A folder in the storage: its files, and a manifest with their sizes and hashes that is written last. Without it, the
// folder is not there.
import { readdir, readFile, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import { damagedError } from './store.ts'

export const manifestName = '.tunery-manifest.json'

const FolderManifest = z.strictObject({
  format: z.literal('tunery-folder'),
  version: z.literal(1),
  files: z.array(
    z.strictObject({
      path: z.string().refine((text) => path.posix.normalize(text) === text && !/^(\/|\.\.(\/|$))|[\0\\]/.test(text)),
      size_bytes: z.int().min(0),
      sha256: z.string().regex(/^[0-9a-f]{64}$/),
    }),
  ),
})
export type FolderManifest = z.infer<typeof FolderManifest>

/** The files in a folder and its subfolders, as sorted relative paths with slashes. Links count as what they name. */
export async function filesOfFolder(folder: string): Promise<string[]> {
  const names: string[] = []
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    const file = path.join(entry.parentPath, entry.name)
    if (entry.isFile() || (entry.isSymbolicLink() && (await stat(file)).isFile()))
      names.push(path.relative(folder, file).replaceAll(path.sep, '/'))
  }
  return names.sort()
}

export const writeFolderManifest = (file: string, files: FolderManifest['files']): Promise<void> =>
  writeFile(file, JSON.stringify({ format: 'tunery-folder', version: 1, files }), { mode: 0o600 })

/** Reads a downloaded manifest. Throws stored_object_damaged. */
export async function readFolderManifest(file: string, key: string): Promise<FolderManifest> {
  try {
    return FolderManifest.parse(JSON.parse(await readFile(file, 'utf8')))
  } catch {
    throw damagedError(key, 'is no manifest that this version can read')
  }
}
