// What a tuned model was trained with: its system prompt, and some of the questions.
import { useQuery } from '@tanstack/react-query'
import { tunery } from '../../lib/api.ts'
import { textOf } from '../../lib/pictures.ts'

const examplesMax = 3
/** A longer question is no example to click. */
const characters_max = 300

const useTunedModel = (model: string | undefined) =>
  useQuery({
    queryKey: ['models', model],
    queryFn: ({ signal }) => tunery.models.get(model!, { signal }),
    enabled: model !== undefined,
    retry: false,
  })

/** The system prompt of every row that a model was trained with, empty for none; undefined if rows have several. */
export function useTrainedPrompt(model: string | undefined): string | undefined {
  const trained = useTunedModel(model).data?.trained_with
  return trained?.system_prompt === 'none' ? '' : (trained?.system_prompt_text ?? undefined)
}

export function useTrainingRows(model: string | undefined): { system: string; examples: string[] } {
  const details = useTunedModel(model)
  const prompt = useTrainedPrompt(model)
  const dataset = details.data?.lineage.steps.at(-1)?.dataset?.id
  const rows = useQuery({
    queryKey: ['datasets', dataset, 'examples'],
    queryFn: ({ signal }) => tunery.datasets.rows(dataset!, { limit: examplesMax }, { signal }),
    enabled: dataset !== undefined,
    // The dataset may have been deleted since.
    retry: false,
  })
  const conversations = (rows.data?.items ?? []).map(
    ({ messages }) => (messages ?? []) as { role?: string; content?: unknown }[],
  )
  const lastOf = (messages: (typeof conversations)[number], role: string) =>
    textOf(messages.findLast((message) => message.role === role)?.content)
  return {
    system: prompt ?? lastOf(conversations[0] ?? [], 'system'),
    examples: conversations
      .map((messages) => lastOf(messages, 'user'))
      .filter((text) => text && text.length <= characters_max),
  }
}
