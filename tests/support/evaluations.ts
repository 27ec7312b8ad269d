import type { Evaluation } from '../../contract/evaluations.ts'
import { type Client, until } from './client.ts'

/** A grader: the answer is the known one. */
export const same = {
  type: 'string_check',
  name: 'same',
  input: '{{sample.output_text}}',
  reference: '{{item.reference}}',
  operation: 'eq',
}

type Api = Pick<Client, 'api'>

export const evaluationEnded = ({ api }: Api, id: string): Promise<Evaluation> =>
  until('the evaluation to end', async () => {
    const { body } = await api('GET', `/evaluations/${id}`)
    return ['queued', 'running'].includes(body.status) ? undefined : body
  })

/** Uploads rows as OpenAI's clients do; resolves with the file's id. */
export async function uploadItems({ api }: Api, items: object[]): Promise<string> {
  const form = new FormData()
  form.set('purpose', 'evals')
  form.set('file', new Blob([items.map((item) => JSON.stringify({ item })).join('\n')]), 'items.jsonl')
  return (await api('POST', '/files', form)).body.id
}
