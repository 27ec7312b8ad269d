// Makes the eight-bit form of bases that are served without it, beside the answers, and then serves it. One base at a
// time, in a process of the lowest priority (engine/eight-bits.ts); what a killed one has left is made again at the
// next load.
import path from 'node:path'
import { childEnv, runToEnd } from '../../lib/child-process.ts'
import { eightBitsFile, eightBitsProblem, readEightBits, writeEightBitsRecord } from '../../lib/eight-bits.ts'
import type { Models, OpenedFile, ServedModel } from './models.ts'

interface EightBitsMaker {
  /** Makes the form of this base, measures it, and lets it be served. */
  make(served: ServedModel): void
}

interface Options {
  library_folder: string
  /** Disk space that stays free. */
  min_free_bytes: number
  /** Whether a base in memory changes to the new form. If not, the next load finds it. */
  replaces: boolean
  models: () => Pick<Models, 'replace' | 'list'>
  /** Reads the copy of the file at this path; null if it is damaged. */
  open(path: string): Promise<OpenedFile | null>
  available_bytes?: () => number
  log: { info(fields: object, message: string): void; warn(fields: object, message: string): void }
}

/** Memory that stays free beside both forms, which are in memory together until the last answer of the former ends. */
const spareBytes = 256e6
/** The status with which the process says that it cannot be, and why. */
const impossibleStatus = 3

/** Why there is no eight-bit form now, in a sentence for the operator. */
class Impossible extends Error {}

const megabytes = (bytes: number) => Math.round(bytes / 1e6)

export function createEightBitsMaker({
  library_folder,
  min_free_bytes,
  replaces,
  models,
  open,
  available_bytes = () => process.availableMemory(),
  log,
}: Options): EightBitsMaker {
  const waiting: ServedModel[] = []
  let isWorking = false

  async function work(): Promise<void> {
    isWorking = true
    for (let served = waiting.shift(); served; served = waiting.shift()) {
      const { name } = served
      try {
        await makeOne(served)
      } catch (error) {
        const reason = (error as Error).message
        log.warn({ model: name, reason }, 'a model is served as it is in its file')
        record(served.path, error instanceof Impossible ? reason : 'Its eight-bit form could not be made: see the log.')
      }
    }
    isWorking = false
  }

  async function makeOne(served: ServedModel): Promise<void> {
    const { name, path: file } = served
    // Unloaded while it waited.
    if (!models().list().includes(served)) return
    if (!readEightBits(file)) {
      const program = path.join(import.meta.dirname, '../eight-bits.ts')
      const began = performance.now()
      const args = [program, file, library_folder, String(min_free_bytes)]
      const { status, killed_by, stderr } = await runToEnd(process.execPath, args, { env: childEnv() })
      if (status === impossibleStatus) throw new Impossible(stderr.trim())
      if (status !== 0) throw new Error(`its eight-bit form ended with ${killed_by ?? status}: ${stderr}`)
      const seconds = Number(((performance.now() - began) / 1000).toFixed(1))
      log.info({ model: name, seconds, ...readEightBits(file)?.distance }, 'the eight-bit form of a model is there')
    }
    if (served.model.is_eight_bit_copy) record(file, undefined)
    if (served.model.is_eight_bit_copy || !replaces) return
    const bytes = readEightBits(file)?.bytes ?? 0
    const [needed, available] = [bytes + spareBytes, available_bytes()]
    if (needed > available)
      throw new Impossible(
        `Its eight-bit form answers from the next load: beside the original it needs ${megabytes(needed)} MB of ` +
          `memory, and ${megabytes(available)} MB are free.`,
      )
    if (!(await models().replace(served, () => open(file)))) return
    record(file, undefined)
    log.info({ model: name, file: eightBitsFile(file) }, 'a model is served in its eight-bit form from now on')
  }

  /** Records why the original answers, for those who look at the base; `undefined`: it does not. */
  function record(file: string, problem: string | undefined): void {
    if (problem === (eightBitsProblem(file) ?? undefined)) return
    try {
      const { original_type, distance } = readEightBits(file) ?? {}
      writeEightBitsRecord(file, { original_type, distance, problem })
    } catch (error) {
      log.warn({ file, reason: (error as Error).message }, 'the record of an eight-bit form could not be written')
    }
  }

  return {
    make(served) {
      waiting.push(served)
      if (!isWorking) void work()
    },
  }
}
