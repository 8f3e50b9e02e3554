/* A four-byte note, so that the linker makes a PT_NOTE program header. The packer turns the last
 * one into the PT_LOAD of the image: a header cannot be added to a linked file, only rewritten. */
    .section .note.cuvil, "a", %note
    .balign 4
    .long 6         /* bytes of the name */
    .long 4         /* bytes of the description */
    .long 1         /* type */
    .asciz "cuvil"
    .balign 4
    .long 1         /* CUVIL_IMAGE_VERSION */

    .section .note.GNU-stack, "", %progbits
