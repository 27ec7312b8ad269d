// The endpoint and the events of a webhook: of a new one, or of one that is there.
import { useMutation } from '@tanstack/react-query'
import { useState } from 'react'
import { webhookEventTypes } from '../../../contract/webhooks.ts'
import type { Webhook } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { FormError } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { toast } from '../../ui/toast.tsx'
import { Checkbox } from '../../ui/toggles.tsx'

type EventType = (typeof webhookEventTypes)[number]
interface Values {
  url: string
  events: ReadonlySet<string>
}

const chosenOf = ({ events }: Values) => webhookEventTypes.filter((type) => events.has(type)) as [EventType]

function Fields({ values, onChange, error }: { values: Values; onChange: (values: Values) => void; error: unknown }) {
  const toggle = (type: string, on: boolean) => {
    const events = new Set(values.events)
    if (on) events.add(type)
    else events.delete(type)
    onChange({ ...values, events })
  }
  return (
    <>
      <Field
        label="Endpoint URL"
        help="http or https. Private network addresses are refused unless the operator allows them."
        error={fieldError(error, 'url')}
      >
        <Input
          type="url"
          placeholder="https://example.com/hooks/tunery"
          value={values.url}
          onChange={(event) => onChange({ ...values, url: event.target.value })}
        />
      </Field>
      <fieldset className="grid gap-2 sm:grid-cols-2">
        <legend className="mb-2 font-medium">Events</legend>
        {webhookEventTypes.map((type) => (
          <Checkbox key={type} label={type} checked={values.events.has(type)} onChange={(on) => toggle(type, on)} />
        ))}
      </fieldset>
      <FormError error={error} fields={['url']} />
    </>
  )
}

const missingIn = ({ url, events }: Values) =>
  !url.trim() ? 'Enter a URL.' : events.size === 0 ? 'Choose at least one event.' : undefined

export function CreateWebhook({
  open,
  onClose,
  onCreated,
}: {
  open: boolean
  onClose: () => void
  onCreated: (secret: string | undefined) => void
}) {
  const first = { url: '', events: new Set(['training.completed', 'training.failed', 'usage.threshold']) }
  const [values, setValues] = useState<Values>(first)
  const create = useMutation({
    mutationFn: () => tunery.webhooks.create({ url: values.url.trim(), events: chosenOf(values) }),
    onSuccess: ({ secret }) => {
      setValues(first)
      onCreated(secret)
    },
  })
  return (
    <Dialog open={open} onOpenChange={(next) => !next && onClose()} title="Add webhook">
      <Form onSubmit={() => create.mutate()}>
        <Fields values={values} onChange={setValues} error={create.error} />
        <FormButtons onCancel={onClose} busy={create.isPending} missing={missingIn(values)}>
          Add webhook
        </FormButtons>
      </Form>
    </Dialog>
  )
}

export function EditWebhook({
  webhook,
  onClose,
  refresh,
}: {
  webhook: Webhook
  onClose: () => void
  refresh: () => Promise<unknown>
}) {
  const [values, setValues] = useState<Values>({ url: webhook.url, events: new Set(webhook.events) })
  const save = useMutation({
    mutationFn: () =>
      tunery.webhooks.update(webhook.id, {
        ...(values.url.trim() !== webhook.url && { url: values.url.trim() }),
        events: chosenOf(values),
      }),
    onSuccess: async () => {
      await refresh()
      toast.good('Webhook updated')
      onClose()
    },
  })
  return (
    <Dialog open onOpenChange={(next) => !next && onClose()} title="Edit webhook">
      <Form onSubmit={() => save.mutate()}>
        <Fields values={values} onChange={setValues} error={save.error} />
        <FormButtons onCancel={onClose} busy={save.isPending} missing={missingIn(values)}>
          Save
        </FormButtons>
      </Form>
    </Dialog>
  )
}
