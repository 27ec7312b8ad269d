// What a run of OpenAI's evals API asks for, in the terms of an evaluation.
import { ApiError } from '../../../../contract/errors.ts'
import { type CreateEvaluation, samplingDefaults as defaults } from '../../../../contract/evaluations.ts'
import type { DataSource, SourceConfig } from '../../../../contract/openai-evals.ts'
import { chatTool, responseFormat } from '../../inference/index.ts'

type ModelSource = Exclude<DataSource, { type: 'jsonl' }>

interface Request extends Pick<CreateEvaluation, 'template' | 'sampling'> {
  /** Null: the rows bring their answers. */
  model: string | null
}

/** Throws invalid_request for fields that say nothing together. */
export function requestOf(source: DataSource, config: SourceConfig): Request {
  if (source.type === 'jsonl') return { model: null, template: undefined, sampling: defaults }
  if (source.model == null && (source.input_messages || source.source.type !== 'stored_completions'))
    throw new ApiError('invalid_request', "'data_source.model' is missing: the model that answers the rows.", {
      param: 'data_source.model',
    })
  return { model: source.model ?? null, template: templateOf(source, config), sampling: samplingOf(source) }
}

function templateOf({ input_messages, source }: ModelSource, config: SourceConfig): CreateEvaluation['template'] {
  if (input_messages?.type === 'template') return input_messages.template
  if (input_messages) return { item_reference: input_messages.item_reference }
  return source.type === 'stored_completions' || config.type !== 'custom' ? { item_reference: 'item.input' } : undefined
}

function samplingOf(source: ModelSource): CreateEvaluation['sampling'] {
  const { temperature, max_completion_tokens, seed, top_p, reasoning_effort: effort } = source.sampling_params ?? {}
  return {
    temperature: temperature ?? defaults.temperature,
    max_tokens: max_completion_tokens ?? defaults.max_tokens,
    seed: seed ?? defaults.seed,
    ...(top_p != null && { top_p }),
    ...(effort && { reasoning_effort: effort }),
    ...formOf(source),
  }
}

type Sampling = CreateEvaluation['sampling']

/** Format and tools, in the form of chat completions. */
function formOf(source: ModelSource): Pick<Sampling, 'response_format' | 'tools'> {
  const response_format =
    source.type === 'completions'
      ? source.sampling_params?.response_format
      : source.sampling_params?.text?.format && responseFormat(source.sampling_params.text.format)
  const tools =
    source.type === 'completions' ? source.sampling_params?.tools : source.sampling_params?.tools?.map(chatTool)
  return {
    ...(response_format && { response_format: response_format as NonNullable<Sampling['response_format']> }),
    ...(tools && tools.length > 0 && { tools: tools as NonNullable<Sampling['tools']> }),
  }
}
