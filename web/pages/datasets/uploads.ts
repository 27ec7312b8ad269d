// Uploads in progress. They continue while other pages are shown; what a large one has sent is remembered, so that it
// resumes after a lost connection or a refresh, when the same file is chosen again.
import { useMemo, useSyncExternalStore } from 'react'
import { randomId } from '../../../sdk/http.ts'
import {
  type Columns,
  type Dataset,
  type DatasetFields,
  isUploadGone,
  TuneryError,
  type UploadState,
} from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { queryClient } from '../../lib/query.ts'

/** `interrupted`: by a refresh; its file must be chosen again. */
type UploadStatus = 'sending' | 'reading' | 'done' | 'failed' | 'interrupted'

export interface Upload {
  id: string
  /** Whose it is: others who sign in in this browser do not see it. */
  account: string
  name: string
  size_bytes: number
  modified: number
  fields: DatasetFields
  status: UploadStatus
  sent_bytes: number
  state?: UploadState | undefined
  error?: Error | undefined
  dataset?: Dataset | undefined
  /** When its last part arrived, unix milliseconds. */
  at: number
}

const key = 'tunery.uploads'
/** The service forgets an unfinished upload after an hour. */
const kept_ms = 3_600_000
const slow_ms = 600_000
/** About a minute of tries, in which a service restarts. */
const retries = 8

const files = new Map<string, File>()
const stops = new Map<string, AbortController>()
const listeners = new Set<() => void>()
let uploads: readonly Upload[] = remembered()

function remembered(): Upload[] {
  try {
    const found = JSON.parse(localStorage.getItem(key) ?? '[]') as Upload[]
    return found
      .filter(({ at, state }) => state && Date.now() - at < kept_ms)
      .map((upload) => ({ ...upload, status: 'interrupted' }))
  } catch {
    return []
  }
}

function change(next: readonly Upload[]): void {
  uploads = next
  try {
    // Small ones, and those with a token of a hub, are sent at once and have no state: they are never written down.
    const kept = uploads.filter(({ state, status }) => state && status !== 'done')
    if (kept.length === 0) localStorage.removeItem(key)
    else localStorage.setItem(key, JSON.stringify(kept.map(({ error: _, ...upload }) => upload)))
  } catch {
    // Storage may be refused: the upload then lasts as long as the page.
  }
  for (const listener of listeners) listener()
}

const update = (id: string, changes: Partial<Upload>) =>
  change(uploads.map((upload) => (upload.id === id ? { ...upload, ...changes } : upload)))

const subscribe = (listener: () => void) => {
  listeners.add(listener)
  return () => listeners.delete(listener)
}
/** Those of an account. */
export function useUploads(account: string): readonly Upload[] {
  const all = useSyncExternalStore(subscribe, () => uploads)
  return useMemo(() => all.filter((upload) => upload.account === account), [all, account])
}

export const isActive = ({ status }: Upload) => status === 'sending' || status === 'reading'

const isSame = (upload: Upload, file: File) =>
  upload.name === file.name && upload.size_bytes === file.size && upload.modified === file.lastModified

/** The columns of a file that was refused because none has a name that is known. */
export const columnsOf = ({ error }: Upload): string[] | undefined => {
  const columns = error instanceof TuneryError ? error.details?.columns : undefined
  return Array.isArray(columns) ? columns.map(String) : undefined
}

/** Sends a file once more, with what its columns are. */
export function mapColumns(id: string, columns: Columns): void {
  const upload = uploads.find((each) => each.id === id)
  if (!upload) return
  update(id, { fields: { ...upload.fields, columns }, state: undefined, sent_bytes: 0 })
  void send(id)
}

/** Sends a file; resumes where it stopped if it was partly sent before. Returns the upload's id. */
export function startUpload(account: string, file: File, fields: DatasetFields = {}): string {
  const earlier = uploads.find(
    (upload) => upload.account === account && isSame(upload, file) && upload.status !== 'done',
  )
  if (earlier) {
    files.set(earlier.id, file)
    if (!isActive(earlier)) void send(earlier.id)
    return earlier.id
  }
  const id = randomId()
  const { name, size: size_bytes, lastModified: modified } = file
  files.set(id, file)
  change([
    ...uploads,
    { id, account, name, size_bytes, modified, fields, status: 'sending', sent_bytes: 0, at: Date.now() },
  ])
  void send(id)
  return id
}

/** Whether it can resume without choosing its file again. */
export const hasFile = (id: string) => files.has(id)
export const continueUpload = (id: string) => void send(id)

/** Ends an upload, here and on the service, or takes a finished one off the list. */
export function dropUpload(id: string): void {
  const upload = uploads.find((each) => each.id === id)
  stops.get(id)?.abort()
  if (upload?.state && upload.status !== 'done') void tunery.uploads.cancel(upload.state.upload_id).catch(() => {})
  files.delete(id)
  change(uploads.filter((each) => each.id !== id))
}

async function send(id: string): Promise<void> {
  const file = files.get(id)
  const upload = uploads.find((each) => each.id === id)
  if (!file || !upload) return
  const stop = new AbortController()
  stops.set(id, stop)
  update(id, { status: 'sending', error: undefined })
  try {
    const dataset = await tunery.datasets.upload(file, upload.fields, {
      signal: stop.signal,
      maxRetries: retries,
      timeout_ms: slow_ms,
      resume: upload.state,
      onProgress: ({ sent_bytes, total_bytes, state }) =>
        update(id, {
          sent_bytes,
          state: state && structuredClone(state),
          at: Date.now(),
          ...(sent_bytes >= total_bytes && { status: 'reading' }),
        }),
    })
    files.delete(id)
    update(id, { status: 'done', dataset, state: undefined })
    await queryClient.invalidateQueries({ queryKey: ['datasets'] })
  } catch (error) {
    if (stop.signal.aborted) return
    // The service has forgotten what it had: begin again.
    if (upload.state && isUploadGone(error)) {
      update(id, { state: undefined, sent_bytes: 0 })
      return send(id)
    }
    update(id, { status: 'failed', error: error as Error })
  } finally {
    stops.delete(id)
  }
}

// A file that is being sent cannot be kept through a refresh: ask before.
addEventListener('beforeunload', (event) => {
  if (uploads.some(({ status }) => status === 'sending')) event.preventDefault()
})
