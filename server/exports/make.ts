// The stages of an export, each in a process of its own: what was trained, made into what was asked for, asked the same
// as the trainer.
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import {
  type ExportCheck,
  ExportFile,
  type ExportStage,
  matrixQuantizations,
  quantizations,
} from '../../contract/exports.ts'
import { root } from '../../lib/root.ts'
import { answersOf, importanceOf, type TakenModel } from '../fine-tuning/models/export-source.ts'
import { runTold, runTrainer, type TrainerExit, type TrainerLine } from '../fine-tuning/trainer.ts'
import { type ExportRow, exportsDir, makingDir, removeDir } from './store.ts'
import { Answers, judge } from './verdict.ts'
import { askGguf } from './verify-gguf.ts'
import { Died, ExportFailure, type ExportWork, type Told } from './work.ts'

const Result = z.object({ out: z.string(), reference: z.string(), answers: z.string().nullable() })
/** What the trainer leaves for the quantizing, where it was asked for: in the folder of the making. */
const importanceFile = 'importance.safetensors'
const Runtime = z.object({ runtime: z.string().optional() })

export interface Made {
  /** A file, or a folder with all that belongs together. */
  out: string
  check: ExportCheck
}

const isQuantized = ({ format, quantization, merge }: ExportRow) =>
  format === 'gguf' && merge === 1 && (quantizations as readonly string[]).includes(quantization ?? '')

const isWeighed = (row: ExportRow) =>
  isQuantized(row) && (matrixQuantizations as readonly string[]).includes(row.quantization!)

/** The stages that an export goes through, in their order. */
export function stagesOf(row: ExportRow): ExportStage[] {
  const whole = row.merge === 1
  return [
    'reference',
    ...(whole ? (['merge'] as const) : []),
    ...(row.format === 'huggingface' ? [] : (['convert'] as const)),
    ...(isQuantized(row) ? (['quantize'] as const) : []),
    'check',
    'pack',
    ...(row.push_to ? (['push'] as const) : []),
  ]
}

/** Rejects with ExportFailure where it is not to be had, and with Died where a process ended without saying why. */
export async function make(
  work: ExportWork,
  row: ExportRow,
  model: TakenModel,
  told: Told,
  signal: AbortSignal,
): Promise<Made> {
  const folder = makingDir(work.dataDir, row.id)
  // What an attempt that was killed left is nobody's: only the answers of the trainer, which are kept with the model,
  // are used again.
  await removeDir(folder)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const run = { run_dir: folder, signal }
  const result = Result.parse(
    await tell(
      told,
      (onLine) =>
        runTrainer({ ...run, module: 'trainer.export', spec: specOf(work, row, model), python: work.python, onLine }),
      signal,
    ),
  )
  const reference = Answers.parse(JSON.parse(await readFile(result.reference, 'utf8')))
  if (row.format !== 'gguf') {
    const text = JSON.parse(await readFile(result.answers ?? '', 'utf8'))
    const exported = Answers.parse(text)
    return {
      out: result.out,
      check: judge(reference, exported, Runtime.parse(text).runtime ?? row.format, row.quantization),
    }
  }
  const out = isQuantized(row) ? await quantize(work, row, result.out, told, signal) : result.out
  told('check', 0)
  const base_gguf = row.merge === 1 ? undefined : model.base.gguf
  const { parse_control_tokens, threads, log } = work
  const asking = {
    file: out,
    base_gguf,
    place: exportsDir(work.dataDir),
    reference,
    parse_control_tokens,
    threads,
    log,
    signal,
  }
  const exported = await askGguf({ ...asking, onProgress: (done) => told('check', done) })
  return { out, check: judge(reference, exported, await engineName(), row.quantization) }
}

const Packed = z.object({ out: z.string(), files: z.array(ExportFile).min(1) })

/** Makes one archive of a folder, with the check's figures in its card, and the hash of what is to be downloaded. */
export async function pack(
  work: ExportWork,
  row: ExportRow,
  check: ExportCheck,
  told: Told,
  signal: AbortSignal,
): Promise<{ path: string; file: ExportFile }> {
  const run_dir = makingDir(work.dataDir, row.id)
  await writeFile(path.join(run_dir, 'check.json'), JSON.stringify(check))
  const run = { run_dir, command: work.python, args: ['-m', 'trainer.export.pack', run_dir], signal }
  const packed = Packed.parse(await tell(told, (onLine) => runTold({ ...run, onLine }), signal))
  return { path: packed.out, file: packed.files[0]! }
}

/** Runs a program that tells of itself, and returns what its `result` said. */
async function tell(
  told: Told,
  run: (onLine: (line: TrainerLine) => void) => Promise<TrainerExit>,
  signal: AbortSignal,
): Promise<unknown> {
  let result: unknown
  let failure: { code: string; message: string } | undefined
  const exit = await run(({ type, message, data }) => {
    if (type === 'result') result = data
    else if (type === 'error') failure = { code: String(data?.code ?? 'internal'), message }
    else if (type === 'progress') told(data?.stage as ExportStage, Number(data?.done))
  })
  signal.throwIfAborted()
  if (failure) throw new ExportFailure(failure.code, failure.message, exit.log)
  if (exit.status === 0 && result !== undefined) return result
  throw new Died(
    `The program that made it ${exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`}`,
    exit.log,
  )
}

async function quantize(
  work: ExportWork,
  row: ExportRow,
  source: string,
  told: Told,
  signal: AbortSignal,
): Promise<string> {
  const run_dir = makingDir(work.dataDir, row.id)
  const type = row.quantization!
  const out = path.join(run_dir, `${path.basename(source).replace(/-(F32|F16|BF16)\.gguf$/, '')}-${type}.gguf`)
  told('quantize', 0)
  const weighed = isWeighed(row) ? [path.join(run_dir, importanceFile)] : []
  const args = [path.join(root, 'engine/quantize.ts'), source, out, type, String(work.threads), ...weighed]
  await tell(told, (onLine) => runTold({ run_dir, command: process.execPath, args, signal, onLine }), signal)
  await rm(source)
  const placed = path.join(path.dirname(source), path.basename(out))
  await rename(out, placed)
  return placed
}

function specOf({ converters, threads, parse_control_tokens }: ExportWork, row: ExportRow, model: TakenModel): object {
  const { id, name, kind, method, folder, gguf, base, card, probe } = model
  return {
    export_id: row.id,
    format: row.format,
    quantization: row.quantization,
    merge: row.merge === 1,
    archive: row.archive,
    model: { id, name, kind, method, folder, gguf },
    base: { id: base.id, path: base.path, gguf: base.gguf, license: base.license },
    card,
    probe,
    reference: answersOf(model),
    importance: isWeighed(row) ? importanceOf(model) : null,
    rows: model.rows,
    parse_control_tokens,
    converters,
    threads,
  }
}

/** The engine's library, by the release that set-up brought. */
async function engineName(): Promise<string> {
  const built = await readFile(path.join(root, '.local/llama/lib/_nlcBuildMetadata.json'), 'utf8').catch(() => '{}')
  const release = z
    .object({ buildOptions: z.object({ llamaCpp: z.object({ release: z.string() }) }) })
    .safeParse(JSON.parse(built))
  return `llama.cpp ${release.success ? release.data.buildOptions.llamaCpp.release : ''}`.trim()
}
