// Makes the files of an export, each stage in a child process, and compares the result with the trainer's reference
// answers.

import { copyFile, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { z } from 'zod'
import {
  type ExportCheck,
  ExportFile,
  type ExportStage,
  matrixQuantizations,
  quantizations,
} from '../../../contract/exports.ts'
import { root } from '../../../lib/root.ts'
import { hashFile } from '../../platform/storage/durable-files.ts'
import {
  runProgram,
  runToResult,
  runTrainer,
  type TrainerEvent,
  type TrainerExit,
} from '../../platform/trainer/trainer.ts'
import type { Projector } from '../hub/index.ts'
import { type ExportSource, importanceMatrixFile, referenceAnswersFile } from '../models/index.ts'
import { type ExportRow, exportsDir, partialDir, removeDir } from './store.ts'
import { Answers, compareAnswers } from './verdict.ts'
import { verifyGguf } from './verify-gguf.ts'
import { ExportFailure, type ExportOutput, type ExportWork, ProcessDied, type ReportProgress } from './work.ts'

const Result = z.object({ out: z.string(), reference: z.string(), answers: z.string().nullable() })
/** The importance matrix that the trainer writes into the run folder, if it is requested. */
const importanceFile = 'importance.safetensors'
const Runtime = z.object({ runtime: z.string().optional() })

const isQuantized = ({ format, quantization, merge }: ExportRow) =>
  format === 'gguf' && merge === 1 && (quantizations as readonly string[]).includes(quantization ?? '')

const usesImportanceMatrix = (row: ExportRow) =>
  isQuantized(row) && (matrixQuantizations as readonly string[]).includes(row.quantization!)

/** The stages of an export, in order. */
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

/** Rejects with ExportFailure if the export is impossible, and with ProcessDied if a process ended without a reason. */
export async function make(
  work: ExportWork,
  row: ExportRow,
  model: ExportSource,
  reportProgress: ReportProgress,
  signal: AbortSignal,
): Promise<ExportOutput> {
  const folder = partialDir(work.dataDir, row.id)
  // Start clean after a killed attempt. Only the reference answers, stored with the model, are reused.
  await removeDir(folder)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  // First: without the projector the minutes of the export would be in vain.
  const projector = row.format === 'gguf' ? model.projector && (await copyProjector(model, folder)) : null
  const run = { run_dir: folder, signal }
  const result = await runReporting(
    reportProgress,
    (onEvent) =>
      runTrainer({ ...run, module: 'trainer.export', spec: specOf(work, row, model), python: work.python, onEvent }),
    signal,
    Result,
  )
  const reference = Answers.parse(JSON.parse(await readFile(result.reference, 'utf8')))
  if (row.format !== 'gguf') {
    const text = JSON.parse(await readFile(result.answers ?? '', 'utf8'))
    const exported = Answers.parse(text)
    return {
      out: result.out,
      check: compareAnswers(reference, exported, Runtime.parse(text).runtime ?? row.format, row.quantization),
    }
  }
  const out = isQuantized(row) ? await quantize(work, row, result.out, reportProgress, signal) : result.out
  reportProgress('check', 0)
  const beside = projector && (await renameBeside(projector, out))
  const { parse_control_tokens, threads, log } = work
  const isWhole = row.merge === 1
  const { gguf } = model.base
  const base = { gguf, projector: model.owns_projector ? model.base.projector : beside }
  const handedOut = beside && (isWhole || model.owns_projector) ? beside : null
  const verifyOptions = {
    file: out,
    base: isWhole ? undefined : base,
    projector: handedOut,
    dataDir: exportsDir(work.dataDir),
    reference,
    parse_control_tokens,
    threads,
    log,
    signal,
  }
  const exported = await verifyGguf({ ...verifyOptions, onProgress: (done) => reportProgress('check', done) })
  const check = compareAnswers(reference, exported, await engineName(), row.quantization)
  return { out, ...(handedOut && { projector: handedOut }), check }
}

/**
 * Copies the projector, the model's own or that of its base. Rejects with ExportFailure if it is missing, or another
 * than in training.
 */
async function copyProjector(model: ExportSource, folder: string): Promise<Projector> {
  const { path: source, sha256 } = model.projector!
  const target = path.join(folder, 'mmproj.gguf')
  const problem = await copyFile(source, target).then(
    async () => ((await hashFile(target)) === sha256 ? undefined : 'is another one than in training'),
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return 'is missing'
      throw error
    },
  )
  if (problem)
    throw new ExportFailure(
      'base_missing',
      model.owns_projector
        ? `The projector that was trained with ${model.id} ${problem}. Restore its mmproj.gguf from a backup, or ` +
            'train the model again.'
        : `The projector of ${model.base.base_model_id}, with which the model reads pictures, ${problem}. Remove the ` +
            'folder of that base from the models folder and add it again, or restore its mmproj.gguf from a backup.',
    )
  return { path: target, sha256 }
}

/** Renames a projector to stand beside a GGUF file. */
async function renameBeside(projector: Projector, file: string): Promise<Projector> {
  const name = path.basename(file).replace(/-[A-Z][A-Z0-9_]*\.gguf$/, '')
  const beside = path.join(path.dirname(projector.path), `mmproj-${name}.gguf`)
  await rename(projector.path, beside)
  return { ...projector, path: beside }
}

const Packed = z.object({ out: z.string(), files: z.array(ExportFile).min(1) })

/** Packs a folder into one archive, with the check's figures in its model card, and hashes the file to download. */
export async function pack(
  work: ExportWork,
  row: ExportRow,
  check: ExportCheck,
  reportProgress: ReportProgress,
  signal: AbortSignal,
): Promise<{ path: string; file: ExportFile }> {
  const run_dir = partialDir(work.dataDir, row.id)
  await writeFile(path.join(run_dir, 'check.json'), JSON.stringify(check))
  const run = { run_dir, command: work.python, args: ['-m', 'trainer.export.pack', run_dir], signal }
  const packed = await runReporting(reportProgress, (onEvent) => runProgram({ ...run, onEvent }), signal, Packed)
  return { path: packed.out, file: packed.files[0]! }
}

/** Runs a program that prints events, reports its progress, and returns the data of its `result` event. */
async function runReporting<T>(
  reportProgress: ReportProgress,
  run: (onEvent: (event: TrainerEvent) => void) => Promise<TrainerExit>,
  signal: AbortSignal,
  schema: z.ZodType<T>,
): Promise<T> {
  const { exit, result, malformed, failure } = await runToResult(run, schema, ({ type, data }) => {
    if (type === 'progress') reportProgress(data?.stage as ExportStage, Number(data?.done))
  })
  signal.throwIfAborted()
  if (failure) throw new ExportFailure(failure.code, failure.message, exit.log)
  if (exit.status === 0 && result !== undefined) return result
  const how = exit.signal ? `was ended by ${exit.signal}` : `ended with status ${exit.status}`
  throw new ProcessDied(malformed ?? `The export program ${how}`, exit.log)
}

async function quantize(
  work: ExportWork,
  row: ExportRow,
  source: string,
  reportProgress: ReportProgress,
  signal: AbortSignal,
): Promise<string> {
  const run_dir = partialDir(work.dataDir, row.id)
  const type = row.quantization!
  const out = path.join(run_dir, `${path.basename(source).replace(/-(F32|F16|BF16)\.gguf$/, '')}-${type}.gguf`)
  reportProgress('quantize', 0)
  const importance = usesImportanceMatrix(row) ? [path.join(run_dir, importanceFile)] : []
  const args = [path.join(root, 'engine/quantize.ts'), source, out, type, String(work.threads), ...importance]
  await runReporting(
    reportProgress,
    (onEvent) => runProgram({ run_dir, command: process.execPath, args, signal, onEvent }),
    signal,
    z.unknown(),
  )
  await rm(source)
  const final = path.join(path.dirname(source), path.basename(out))
  await rename(out, final)
  return final
}

function specOf(
  { converters, threads, parse_control_tokens }: ExportWork,
  row: ExportRow,
  model: ExportSource,
): object {
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
    reference: referenceAnswersFile(model),
    importance: usesImportanceMatrix(row) ? importanceMatrixFile(model) : null,
    rows: model.rows,
    parse_control_tokens,
    converters,
    threads,
  }
}

/** The name and installed release of the engine's library. */
async function engineName(): Promise<string> {
  const built = await readFile(path.join(root, '.local/llama/lib/_nlcBuildMetadata.json'), 'utf8').catch(() => '{}')
  const release = z
    .object({ buildOptions: z.object({ llamaCpp: z.object({ release: z.string() }) }) })
    .safeParse(JSON.parse(built))
  return `llama.cpp ${release.success ? release.data.buildOptions.llamaCpp.release : ''}`.trim()
}
