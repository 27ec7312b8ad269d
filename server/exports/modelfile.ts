import type { TakenModel } from '../tuning/taking.ts'
import type { ExportRow } from './store.ts'

/** What `ollama create NAME -f Modelfile` reads beside the GGUF. */
export async function modelfile(gguf: string, row: ExportRow, { base }: TakenModel): Promise<string> {
  const from = row.merge === 1 ? [`FROM ./${gguf}`] : [`# The GGUF of ${base.id}, which the adapter stands on.`, 'FROM ./base.gguf', `ADAPTER ./${gguf}`]
  return [...from, `PARAMETER num_ctx ${base.context_length}`, ''].join('\n')
}
