import path from 'node:path'

/** The folder of one attempt at a job. */
export const runDir = (dataDir: string, job_id: string, attempt: number) => path.join(dataDir, 'runs', job_id, String(attempt))

/** The folder of a tuned model: `adapter/` as PEFT wrote it and `adapter.gguf` as the engine serves it, or `hf/` and `model.gguf` of a whole one. */
export const modelDir = (dataDir: string, model_id: string) => path.join(dataDir, 'models', model_id)

/** What lies in the folder of a tuned model. */
export const modelFiles = { adapter: { folder: 'adapter', gguf: 'adapter.gguf' }, model: { folder: 'hf', gguf: 'model.gguf' } } as const

/** In the folder of a model: rows by which engine and trainer are compared. */
export const probeFile = 'probe.json'

/** In the folder of a job's result: each row's loss, one JSON object a line, the strangest first. */
export const rowsFile = 'rows.jsonl'
