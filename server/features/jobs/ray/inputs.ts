// What a run in a cluster needs from this machine: its spec, with paths relative to its own folder, and its files.
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { createFileHashes } from '../../../platform/storage/durable-files.ts'
import type { Specs } from '../spec.ts'
import type { JobRow } from '../store.ts'
import type { Run } from './runs.ts'

interface InputFile {
  /** In the run's folder. */
  path: string
  sha256: string
  size_bytes: number
  /** Whether the machine keeps it for later runs: weights that everybody may have. */
  cache: boolean
}

export interface RunInputs {
  spec: object
  files: InputFile[]
  /** Paths on this machine, by hash. */
  sources: ReadonlyMap<string, string>
}

type Located = { path: string }
export function createRunInputs(
  specs: Pick<Specs, 'ofJob'>,
  { models_dir, threads }: { models_dir: string; threads: number },
) {
  const hashed = createFileHashes()

  async function filesUnder(source: string): Promise<string[]> {
    const entries = await readdir(source, { recursive: true, withFileTypes: true }).catch(() => [])
    return entries.filter((entry) => !entry.isDirectory()).map((entry) => path.join(entry.parentPath, entry.name))
  }

  return async function describe(job: JobRow, run: Run): Promise<RunInputs> {
    const spec = await specs.ofJob(job, run)
    const files: InputFile[] = []
    const sources = new Map<string, string>()
    async function add(source: string, target: string) {
      const { sha256, size_bytes } = await hashed(source)
      files.push({ path: target, sha256, size_bytes, cache: source.startsWith(models_dir + path.sep) })
      sources.set(sha256, source)
    }
    async function addFolder(source: string, target: string) {
      for (const file of await filesUnder(source)) await add(file, path.join(target, path.relative(source, file)))
    }
    /** Adds a file or folder, and makes the spec name it by its place in the run's folder. */
    async function moved<T extends Located>(located: T, target: string, addTo: typeof add): Promise<T> {
      await addTo(located.path, target)
      return { ...located, path: target }
    }
    const relative = {
      ...spec,
      base: await moved(spec.base, 'inputs/base', addFolder),
      start: spec.start && (await moved(spec.start, 'inputs/start', addFolder)),
      dataset: await moved(spec.dataset, 'inputs/dataset.jsonl', add),
      evaluation: {
        ...spec.evaluation,
        dataset: spec.evaluation.dataset && (await moved(spec.evaluation.dataset, 'inputs/validation.jsonl', add)),
      },
      // A checkpoint whose files are gone stays in the list: the trainer says so and takes the next.
      resume_from: await Promise.all(
        spec.resume_from.map((checkpoint, index) =>
          moved(checkpoint, `inputs/checkpoints/${index}/step-${checkpoint.step}`, addFolder),
        ),
      ),
      // In the package of the code.
      converters: 'converters',
      threads,
    }
    return { spec: relative, files, sources }
  }
}
