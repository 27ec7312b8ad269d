// Storage that machines share: objects in a bucket or in a folder that all of them mount, and artifacts on top.
import { parseStorageUrl } from '../../../../lib/storage-url.ts'
import { FileStore } from './file-driver.ts'
import type { ObjectStore } from './store.ts'

export { type Artifacts, createArtifacts, type Hold } from './artifacts.ts'
export { claimStorage, ownerKey } from './owner.ts'
export type { ObjectStore } from './store.ts'

/** Opens the storage of a URL (docs/postgres-redis-s3.md). The SDK is loaded here, and only for a bucket. */
export async function openObjectStore(url: string): Promise<ObjectStore> {
  const target = parseStorageUrl(url)
  if (target.kind === 'file') return new FileStore(target.folder)
  const { S3Store } = await import('./s3-driver.ts')
  return new S3Store(target)
}
