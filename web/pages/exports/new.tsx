import { useMutation, useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import type { CreateExportInput } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { type Choice, Combobox, Select } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { FormError } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Checkbox } from '../../ui/toggles.tsx'

type Format = 'gguf' | 'huggingface' | 'onnx'
const formats: Choice<Format>[] = [
  { value: 'gguf', label: 'GGUF', note: 'A single file for Ollama, llama.cpp and LM Studio' },
  { value: 'huggingface', label: 'Hugging Face folder', note: 'For transformers, vLLM and further training' },
  { value: 'onnx', label: 'ONNX', note: 'For ONNX Runtime in browsers, Node and on devices' },
]
const ggufTypes: Choice[] = [
  { value: 'Q8_0', label: 'Q8_0', note: 'Half the size of F16, no visible loss' },
  { value: 'Q6_K', label: 'Q6_K', note: 'Smaller, hardly any loss' },
  { value: 'Q5_K_M', label: 'Q5_K_M', note: 'Smaller still, little loss' },
  { value: 'Q4_K_M', label: 'Q4_K_M', note: 'A quarter of F16, recommended' },
  { value: 'IQ4_XS', label: 'IQ4_XS', note: 'The smallest 4-bit type' },
  { value: 'Q3_K_M', label: 'Q3_K_M', note: 'Quality suffers' },
  { value: 'F16', label: 'F16', note: 'Unquantized' },
  { value: 'BF16', label: 'BF16', note: 'Unquantized, as trained' },
  { value: 'F32', label: 'F32', note: 'Unquantized, twice the size' },
]
const onnxTypes: Choice[] = [
  { value: 'fp32', label: 'fp32' },
  { value: 'fp16', label: 'fp16' },
  { value: 'int8', label: 'int8', note: 'A quarter of fp32' },
  { value: 'int4', label: 'int4', note: 'An eighth of fp32' },
]
const fields = ['model', 'format', 'quantization', 'push_to']

interface NewExportProps {
  /** The model to begin with. */
  of?: string | undefined
  onClose: () => void
  onCreated: (id: string) => void
}

export function NewExport({ of, onClose, onCreated }: NewExportProps) {
  const [chosenModel, setModel] = useState<string | null>(of ?? null)
  const [format, setFormat] = useState<Format>('gguf')
  const [gguf, setGguf] = useState('Q4_K_M')
  const [onnx, setOnnx] = useState('fp32')
  const [adapterOnly, setAdapterOnly] = useState(false)
  const [repository, setRepository] = useState('')
  const models = useQuery({
    queryKey: ['models', 'exportable'],
    queryFn: ({ signal }) => tunery.models.list({ limit: 100 }, { signal }),
  })
  // The only model there is.
  const only = models.data?.items.length === 1 ? models.data.items[0]!.id : null
  const model = chosenModel ?? only
  const chosen = models.data?.items.find(({ id }) => id === model)
  const alone = adapterOnly && chosen?.kind === 'adapter' && format !== 'onnx'
  const create = useMutation({
    mutationFn: () => {
      const quantization = format === 'onnx' ? onnx : format === 'gguf' && !alone ? gguf : undefined
      const body = {
        model: model!,
        format,
        ...(quantization && { quantization }),
        ...(alone && { merge: false }),
        ...(repository.trim() && { push_to: repository.trim() }),
      }
      return tunery.exports.create(body as CreateExportInput)
    },
    onSuccess: ({ id }) => onCreated(id),
  })
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Export a model">
      <Form onSubmit={() => create.mutate()}>
        <Field label="Model" error={fieldError(create.error, 'model')}>
          <Combobox
            value={model}
            onChange={setModel}
            choices={
              models.data?.items.map(({ id, name, base_model_id }) => ({
                value: id,
                label: name,
                note: `on ${base_model_id}`,
              })) ?? []
            }
            placeholder="Choose a model"
          />
        </Field>
        <Field label="Format" error={fieldError(create.error, 'format')}>
          <Select value={format} onChange={setFormat} choices={formats} />
        </Field>
        {format === 'gguf' && !alone && (
          <Field
            label="Quantization"
            help="Fewer bits per weight: smaller and faster, eventually worse. The check measures by how much."
            error={fieldError(create.error, 'quantization')}
          >
            <Select value={gguf} onChange={setGguf} choices={ggufTypes} />
          </Field>
        )}
        {format === 'onnx' && (
          <Field label="Precision" error={fieldError(create.error, 'quantization')}>
            <Select value={onnx} onChange={setOnnx} choices={onnxTypes} />
          </Field>
        )}
        {chosen?.kind === 'adapter' && format !== 'onnx' && (
          <Checkbox
            label="Adapter only"
            help="A small file that needs the base model."
            checked={adapterOnly}
            onChange={setAdapterOnly}
          />
        )}
        <Disclosure summary="Push to a repository" quiet>
          <Field
            label="Repository"
            optional
            help="owner/name on the Hugging Face Hub. The service needs a token (TUNERY_HF_TOKEN)."
            error={fieldError(create.error, 'push_to')}
            className="pt-2"
          >
            <Input value={repository} onChange={(event) => setRepository(event.target.value)} />
          </Field>
        </Disclosure>
        <FormError error={create.error} fields={fields} />
        <FormButtons onCancel={onClose} busy={create.isPending} missing={!model && 'Choose a model.'}>
          Export
        </FormButtons>
      </Form>
    </Dialog>
  )
}
