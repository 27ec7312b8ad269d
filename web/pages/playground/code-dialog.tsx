import type { ChatRequest } from '../../../sdk/index.ts'
import { TextLink } from '../../ui/button.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { Notice } from '../../ui/feedback.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { hasPictures, samplesOf } from './code.ts'

/** The request that would be sent now, as code. `requestNow`: undefined where its tools or schema are no JSON. */
export function CodeDialog({
  open,
  onOpenChange,
  requestNow,
}: {
  open: boolean
  onOpenChange: (open: boolean) => void
  requestNow: () => ChatRequest | undefined
}) {
  return (
    <Dialog open={open} onOpenChange={onOpenChange} title="View code" width="lg">
      {open && <Code request={requestNow()} />}
    </Dialog>
  )
}

function Code({ request }: { request: ChatRequest | undefined }) {
  if (!request) return <Notice tone="bad">Tools or schema are not valid JSON.</Notice>
  return (
    <>
      {hasPictures(request) && (
        <p className="mb-3 text-sm text-muted">
          Pictures are shortened here. Your code sends the whole file as base64.
        </p>
      )}
      <CodeTabs label="Language" samples={samplesOf(request)} />
      <p className="mt-3 text-sm text-muted">
        Set TUNERY_KEY to one of your{' '}
        <TextLink to="/settings/$section" params={{ section: 'keys' }}>
          API keys
        </TextLink>
        .
      </p>
    </>
  )
}
