import type { ReactNode } from 'react'
import { Button, CopyButton } from './button.tsx'
import { Notice } from './feedback.tsx'
import { Dialog } from './popups.tsx'

/** Shows a secret that cannot be read again. */
export function SecretDialog({
  secret,
  title,
  children,
  onClose,
}: {
  /** Undefined: closed. */
  secret: string | undefined
  title: string
  children: ReactNode
  onClose: () => void
}) {
  return (
    <Dialog
      open={secret !== undefined}
      onOpenChange={(open) => !open && onClose()}
      title={title}
      kept
      footer={
        <Button variant="primary" onClick={onClose}>
          Done
        </Button>
      }
    >
      <div className="grid gap-3">
        <Notice tone="warn">Copy it now. It won't be shown again.</Notice>
        <div className="flex items-center gap-2 rounded-md bg-hover p-3">
          <code className="min-w-0 flex-1 font-mono text-sm break-all" data-testid="secret">
            {secret}
          </code>
          <CopyButton text={secret ?? ''} />
        </div>
        <div className="text-sm text-muted">{children}</div>
      </div>
    </Dialog>
  )
}
