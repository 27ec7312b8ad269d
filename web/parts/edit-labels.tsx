import { useMutation } from '@tanstack/react-query'
import { type ReactNode, useState } from 'react'
import { fieldError } from '../lib/errors.ts'
import { FormError } from '../ui/feedback.tsx'
import { Field, Form, FormButtons, NameField, Textarea } from '../ui/field.tsx'
import { Dialog } from '../ui/popups.tsx'
import { toast } from '../ui/toast.tsx'

interface Labels {
  name: string
  description: string
}

/** Changes the name and the notes of something. */
export function EditLabels({
  title,
  description: about,
  labels,
  save,
  onClose,
  children,
}: {
  title: string
  description?: string
  labels: Labels
  save: (labels: Labels) => Promise<unknown>
  onClose: () => void
  /** What else can be changed. */
  children?: ReactNode
}) {
  const [name, setName] = useState(labels.name)
  const [description, setDescription] = useState(labels.description)
  const change = useMutation({
    mutationFn: () => save({ name, description }),
    onSuccess() {
      toast.good('Saved')
      onClose()
    },
  })
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title={title} description={about}>
      <Form onSubmit={() => change.mutate()}>
        <NameField error={fieldError(change.error, 'name')} value={name} onChange={setName} />
        <Field label="Notes" optional error={fieldError(change.error, 'description')}>
          <Textarea value={description} onChange={(event) => setDescription(event.target.value)} maxLength={2000} />
        </Field>
        {children}
        <FormError error={change.error} fields={['name', 'description']} />
        <FormButtons onCancel={onClose} busy={change.isPending} missing={!name.trim() && 'Enter a name.'}>
          Save
        </FormButtons>
      </Form>
    </Dialog>
  )
}
